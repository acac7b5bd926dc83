"""Where an instance keeps and finds keys and values of prefixes: its memory, then the object store.

Nothing here can fail a call, or make a wrong token. What cannot be had, whole and in time, is
computed; what cannot be stored is not. Counters say how often. A store that hangs is left alone
for a while after it was given up once.

    memory          segments of one model at one version, least recently used first to go
    object store    kv/{job}/v{version}/{key}, shared by all instances; entries appear whole
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from prefix_cache.bounded import run_bounded
from prefix_cache.entry import (
    BadEntryError,
    Bytes,
    Header,
    Layout,
    decode_entry,
    encode_entry,
)
from prefix_cache.keys import KvIdentity, object_name
from rlhfless.errors import CapacityError
from rlhfless.objects import ObjectStore

Source = Literal["memory", "store"]


class Found(NamedTuple):
    """``data``: the bytes of the array [layers, 2, heads, tokens, dim]; not to be written to."""

    data: Bytes
    source: Source


@dataclass
class KvCounters:
    """Of segments, since the store was made."""

    memory_hits: int = 0
    store_hits: int = 0
    misses: int = 0
    bad: int = 0
    """Entries that were damaged, or not what their name said."""
    failed: int = 0
    """Reads and writes that ended in an error."""
    slow: int = 0
    """Reads and writes that were given up."""
    published: int = 0
    not_published: int = 0
    """Left out because the store is full, failing or hanging, or the instance's share is used."""
    last_problem: str = ""

    @property
    def troubles(self) -> int:
        return self.bad + self.failed + self.slow


class KvStore:
    """Of one instance; used from one thread. Call ``use`` before anything else.

    ``memory_bytes`` and ``publish_bytes`` bound what is held here, and what this instance puts into
    the object store for one version. ``timeout_s`` without any answer from the object store makes
    it give up; it tries again ``retry_s`` later.
    """

    def __init__(
        self,
        memory_bytes: int = 512 << 20,
        *,
        publish_bytes: int = 4 << 30,
        timeout_s: float = 5.0,
        retry_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = KvCounters()
        self._memory: OrderedDict[str, Bytes] = OrderedDict()
        self._memory_bytes = memory_bytes
        self._publish_bytes = publish_bytes
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._clock = clock
        self._held_bytes = 0
        self._published_bytes = 0
        self._alone_until = -float("inf")
        self._model: tuple[KvIdentity, Layout] | None = None

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def use(self, identity: KvIdentity, layout: Layout) -> None:
        """Serve this model from now on; what was held of another is dropped."""
        if self._model != (identity, layout):
            self.clear()
            self._published_bytes = 0
            self._model = (identity, layout)

    def clear(self) -> None:
        """Empty the memory."""
        self._memory.clear()
        self._held_bytes = 0

    # --- reading ------------------------------------------------------------------------------

    def get(self, wanted: Mapping[str, int], objects: ObjectStore | None) -> dict[str, Found]:
        """What there is of the segments ``wanted`` (key -> tokens), by key. ``objects`` None: in
        memory only. What comes from the object store is in memory afterwards."""
        found: dict[str, Found] = {}
        for key in wanted:
            if key in self._memory:
                self._memory.move_to_end(key)
                found[key] = Found(self._memory[key], "memory")
        self.counters.memory_hits += len(found)
        missing = [key for key in wanted if key not in found]
        if objects is not None and missing and self._answers():
            read = [partial(self._read, objects, self._header(k, wanted[k])) for k in missing]
            for key, result in zip(missing, run_bounded(read, self._timeout_s), strict=True):
                if isinstance(result, Exception):
                    self._note(result)
                else:
                    self.counters.store_hits += 1
                    found[key] = Found(result, "store")
                    self.keep(key, result)
        self.counters.misses += len(wanted) - len(found)
        return found

    def _read(self, objects: ObjectStore, wanted: Header) -> Bytes:
        name = object_name(wanted.identity, wanted.key)
        path = objects.local_path(name)
        if path is not None:
            entry: Bytes = np.fromfile(path, dtype=np.uint8)
        else:
            entry = np.frombuffer(bytearray(objects.get(name)), dtype=np.uint8)
        try:
            data = decode_entry(entry, wanted)
        except BadEntryError:
            objects.delete(name)  # so that whoever computes it stores it again
            raise
        objects.touch(name)
        return data

    # --- writing ------------------------------------------------------------------------------

    def keep(self, key: str, data: Bytes) -> None:
        """Hold a segment in memory, if it fits at all; the caller writes to it no more."""
        if len(data) > self._memory_bytes:
            return
        held = self._memory.pop(key, None)
        self._held_bytes += len(data) - (0 if held is None else len(held))
        self._memory[key] = data
        while self._held_bytes > self._memory_bytes:
            _, dropped = self._memory.popitem(last=False)
            self._held_bytes -= len(dropped)

    def publish(self, segments: Mapping[str, tuple[int, Bytes]], objects: ObjectStore) -> int:
        """Put segments (key -> tokens, data) into the object store; the bytes that were written."""
        room = self._publish_bytes - self._published_bytes
        tasks: list[Callable[[], int]] = []
        for key, (tokens, data) in segments.items():
            if len(data) <= room and self._answers():
                room -= len(data)
                tasks.append(partial(self._write, objects, self._header(key, tokens), data))
        self.counters.not_published += len(segments) - len(tasks)
        written = 0
        for result in run_bounded(tasks, self._timeout_s):
            if isinstance(result, Exception):
                self.counters.not_published += 1
                self._note(result)
            else:
                self.counters.published += 1
                written += result
        self._published_bytes += written
        return written

    def absent(self, keys: Sequence[str], objects: ObjectStore) -> list[str]:
        """Those of which the object store has no entry, as far as it says."""
        if not self._answers():
            return []
        names = [object_name(self._header(key, 0).identity, key) for key in keys]
        answers = run_bounded([partial(objects.exists, name) for name in names], self._timeout_s)
        for answer in answers:
            if isinstance(answer, Exception):
                self._note(answer)
        return [key for key, there in zip(keys, answers, strict=True) if there is False]

    def _write(self, objects: ObjectStore, header: Header, data: Bytes) -> int:
        entry = encode_entry(header, data)
        objects.put(object_name(header.identity, header.key), entry)
        return len(entry)

    # --- what both share ----------------------------------------------------------------------

    def _header(self, key: str, tokens: int) -> Header:
        assert self._model is not None
        identity, layout = self._model
        return Header(key, identity, layout.shape(tokens), layout.dtype)

    def _answers(self) -> bool:
        return self._clock() >= self._alone_until

    def _note(self, problem: Exception) -> None:
        counters = self.counters
        match problem:
            case FileNotFoundError():
                return
            case BadEntryError():
                counters.bad += 1
            case TimeoutError():
                counters.slow += 1
                self._alone_until = self._clock() + self._retry_s
            case CapacityError():
                counters.failed += 1
                self._alone_until = self._clock() + self._retry_s
            case _:
                counters.failed += 1
        counters.last_problem = f"{type(problem).__name__}: {problem}"
