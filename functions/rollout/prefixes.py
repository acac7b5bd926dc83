"""Keys and values of prompt prefixes for one call: found in the KV store, or computed and kept.

Stands between ``prefix_cache``, which knows bytes, and a decoder, which knows tensors.

L layers, H key-value heads, n tokens of a segment, D head size.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import Tensor

from prefix_cache.entry import Bytes, Layout
from prefix_cache.keys import KvIdentity, segment_keys
from prefix_cache.store import KvStore
from rlhfless.messages import RolloutDone
from rlhfless.objects import ObjectStore

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class PrefixBooks:
    """As in ``RolloutDone``: each segment counts once a call, where it was first found."""

    loaded: int = 0
    reused: int = 0
    loads: int = 0
    load_s: float = 0.0
    loaded_bytes: int = 0
    publish_s: float = 0.0
    published_bytes: int = 0

    def entered_in(self, done: RolloutDone) -> RolloutDone:
        """``done`` with these books; its prefill seconds without loading and publishing."""
        return msgspec.structs.replace(
            done,
            prefill_loaded=self.loaded,
            prefill_reused=self.reused,
            prefill_s=max(0.0, done.prefill_s - self.load_s - self.publish_s),
            kv_loads=self.loads,
            kv_load_s=self.load_s,
            kv_loaded_bytes=self.loaded_bytes,
            kv_publish_s=self.publish_s,
            kv_published_bytes=self.published_bytes,
        )


class Prefixes:
    """Of one call. ``load``: look into the object store too. ``publish``: put there what this
    instance has and the object store has not. ``store`` serves ``identity`` already."""

    def __init__(
        self,
        store: KvStore,
        identity: KvIdentity,
        layout: Layout,
        objects: ObjectStore,
        *,
        load: bool,
        publish: bool,
    ) -> None:
        self.books = PrefixBooks()
        self._store = store
        self._identity = identity
        self._layout = layout
        self._objects = objects
        self._load = load
        self._publish = publish
        self._seen: set[str] = set()
        self._held: dict[str, tuple[int, Bytes]] = {}  # found in memory, maybe nowhere else

    def keys(self, tokens: Sequence[int], cuts: Sequence[int]) -> tuple[str, ...]:
        return segment_keys(self._identity, tokens, cuts)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """What is done inside counts as loading, not as prefill."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.books.load_s += time.perf_counter() - began

    def find(self, wanted: Mapping[str, int]) -> dict[str, Tensor]:
        """What there is of segments (key -> tokens): [L, 2, H, n, D], on the CPU, not to be written
        to."""
        found = self._store.get(wanted, self._objects if self._load else None)
        for key, (data, source) in found.items():
            if source == "store":
                self.books.loaded += wanted[key]
                self.books.loads += 1
                self.books.loaded_bytes += len(data)
            elif key not in self._seen:
                self.books.reused += wanted[key]
                self._held[key] = (wanted[key], data)
        self._seen.update(found)
        return {key: self._tensor(data, wanted[key]) for key, (data, _) in found.items()}

    def add(self, segments: Mapping[str, Tensor]) -> None:
        """Keep segments that were computed, shaped as ``find`` gives them, and publish what is to
        be. The caller has no other use for the tensors."""
        data = {key: (tensor.shape[3], _bytes(tensor)) for key, tensor in segments.items()}
        for key, (_, kept) in data.items():
            self._store.keep(key, kept)
        self._seen.update(data)
        if self._publish:
            began = time.perf_counter()
            absent = self._store.absent(list(self._held), self._objects) if self._held else []
            data |= {key: self._held[key] for key in absent}
            self.books.published_bytes += self._store.publish(data, self._objects)
            self.books.publish_s += time.perf_counter() - began
        self._held.clear()

    def _tensor(self, data: Bytes, tokens: int) -> Tensor:
        flat = torch.from_numpy(data).view(_DTYPES[self._layout.dtype])
        return flat.view(self._layout.shape(tokens))


def _bytes(tensor: Tensor) -> Bytes:
    data: Bytes = tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
    assert data.dtype == np.uint8
    return data
