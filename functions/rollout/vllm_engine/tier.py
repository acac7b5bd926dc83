"""The object store as a tier below vLLM's own memory for keys and values.

vLLM's scheduler asks (``lookup``), and moves blocks between the accelerator and the host's memory;
from there they go into the object store (``submit_store``), or come from it (``submit_load``). All
of that returns at once. Blocks live under the weight version of the request that asks (``Place``):
whatever vLLM's hash of a block leaves out, nothing of other weights has the name.

A block that is missing, damaged or late is a miss: vLLM computes it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingSpec,
    OffloadKey,
    OffloadPolicy,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import (
    JobId,
    JobResult,
    SecondaryTierManager,
    TransferJob,
)

from functions.rollout.vllm_engine.kv_place import Place, place_in
from functions.rollout.vllm_engine.receipts import Receipt, ReceiptSender
from functions.rollout.vllm_engine.transfers import Job, Patience, Threads
from prefix_cache.blocks import block_header, block_name
from prefix_cache.entry import BadEntryError, Bytes, decode_entry, encode_entry
from rlhfless.objects import ObjectStore

_log = logging.getLogger(__name__)
_DRAIN_S = 0.005
WARN_S = 10.0


@dataclass
class _Look:
    """Whether there is an object: None until it is known."""

    begun_s: float
    found: bool | None = None
    askers: set[str] = field(default_factory=set)


@dataclass
class _Account:
    """Of one request: blocks on their way into the store, and whether more can come. Its loads, as
    look-ups come back, are one."""

    place: Place
    lock: threading.Lock = field(default_factory=threading.Lock)
    under_way: int = 0
    finished: bool = False
    loaded_until_s: float = 0.0
    sum: Receipt = field(default_factory=lambda: Receipt(""))

    def add(self, **more: Any) -> None:
        with self.lock:
            self.sum += Receipt("", **more)


class ObjectTier(SecondaryTierManager):
    """Called by the scheduler's thread alone. ``layout``: as in ``prefix_cache.blocks``."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        layout: str,
        patience: Patience | None = None,
        **more: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, **more)
        self._rows = np.asarray(primary_kv_view).view(np.uint8)
        self._layout = layout
        self._patience = patience or Patience()
        self._threads = Threads()
        self._sender = ReceiptSender()
        self._stores: dict[str, ObjectStore] = {}
        self._looks: dict[str, _Look] = {}
        self._looked: dict[str, set[str]] = {}  # request -> names
        self._accounts: dict[str, _Account] = {}
        self._jobs: dict[JobId, tuple[TransferJob, Job[OffloadKey]]] = {}
        self._ended: list[JobResult] = []
        self._warned_s = -WARN_S

    # --- requests -----------------------------------------------------------------------------

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        place = place_in(req_context.kv_transfer_params)
        if place is None:
            return RequestOffloadingContext()
        self._accounts[req_context.req_id] = _Account(place)
        # Else blocks that vLLM has cached already would not be offered.
        policy = OffloadPolicy.REQUEST_LEVEL if place.publish else OffloadPolicy.CHUNK_LEVEL
        return RequestOffloadingContext(policy)

    def on_request_finished(self, req_context: ReqContext) -> None:
        request = req_context.req_id
        for name in self._looked.pop(request, ()):
            look = self._looks[name]
            look.askers.discard(request)
            if not look.askers:
                del self._looks[name]
        account = self._accounts.pop(request, None)
        if account is not None:
            with account.lock:
                account.finished = True
                last = not account.under_way
            if last:
                self._threads.do(partial(self._tell, account, ended=1))

    # --- lookup -------------------------------------------------------------------------------

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        account = self._accounts.get(req_context.req_id)
        if account is None or not self._patience.answers:
            return LookupResult.MISS
        name = self._name(account.place, key)
        look = self._looks.get(name)
        if look is None:
            look = self._looks[name] = _Look(time.monotonic())
            self._threads.do(partial(self._look, look, account.place, name))
        look.askers.add(req_context.req_id)
        self._looked.setdefault(req_context.req_id, set()).add(name)
        found = look.found
        if found is None and time.monotonic() - look.begun_s > self._patience.stall_s:
            self._stalled("a look-up")
            found = look.found = False
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def _look(self, look: _Look, place: Place, name: str) -> None:
        try:
            found = self._store(place).exists(name)
        except Exception as error:  # the task boundary: it is a miss
            self._warn("prefixes are not looked up", error)
            found = False
        if look.found is None:  # not given up meanwhile
            look.found = found

    # --- loads --------------------------------------------------------------------------------

    def submit_load(self, job_metadata: TransferJob) -> None:
        account = self._accounts.get(job_metadata.req_context.req_id)
        job = self._submit(job_metadata)
        if account is None:
            job.give_up()
            return
        for key, chunk in zip(job_metadata.keys, job_metadata.chunk_ids, strict=True):
            self._threads.do(partial(self._load, job, account, key, int(chunk)))

    def _load(self, job: Job[OffloadKey], account: _Account, key: OffloadKey, chunk: int) -> None:
        if job.given_up:
            return
        try:
            data = self._read(account.place, key)
        except Exception as error:  # the task boundary: the block is computed
            self._warn("a prefix is computed that was to be loaded", error)
            self._failed(job, account)
            return
        if job.carry(key, lambda: self._copy_in(chunk, data)):
            account.add(loaded=1, loaded_bytes=len(data))

    def _read(self, place: Place, key: OffloadKey) -> Bytes:
        store, name = self._store(place), self._name(place, key)
        path = store.local_path(name)
        entry: Bytes = (
            np.fromfile(path, dtype=np.uint8)
            if path is not None
            else np.frombuffer(store.get(name), dtype=np.uint8)
        )
        wanted = block_header(place.identity, self._layout, key, self.block_size_bytes)
        try:
            data = decode_entry(entry, wanted)
        except BadEntryError:
            store.delete(name)  # so that whoever computes it stores it again
            raise
        store.touch(name)
        return data

    def _copy_in(self, chunk: int, data: Bytes) -> None:
        self._rows[chunk] = data

    # --- stores -------------------------------------------------------------------------------

    def submit_store(self, job_metadata: TransferJob) -> None:
        account = self._accounts.get(job_metadata.req_context.req_id)
        job = self._submit(job_metadata)
        if account is None or not account.place.publish or not self._patience.answers:
            job.give_up()
            return
        with account.lock:
            account.under_way += len(job_metadata.keys)
        for key, chunk in zip(job_metadata.keys, job_metadata.chunk_ids, strict=True):
            self._threads.do(partial(self._publish, job, account, key, int(chunk)))

    def _publish(
        self, job: Job[OffloadKey], account: _Account, key: OffloadKey, chunk: int
    ) -> None:
        began = time.monotonic()
        copied: list[Bytes] = []
        try:
            moved: dict[str, Any] = self._written(job, account.place, key, chunk, copied)
            if "published" in moved:
                moved["publish_s"] = time.monotonic() - began
        except Exception as error:  # the task boundary: the block is not stored
            self._warn("a prefix is not stored", error)
            moved = {"failed": 1}
        if not copied:
            job.carry(key, lambda: None)
        account.add(**moved)
        with account.lock:
            account.under_way -= 1
            last = account.finished and not account.under_way
        if last:
            self._tell(account, ended=1)

    def _written(
        self,
        job: Job[OffloadKey],
        place: Place,
        key: OffloadKey,
        chunk: int,
        copied: list[Bytes],
    ) -> dict[str, int]:
        if job.given_up:
            return {"failed": 1}
        store, name = self._store(place), self._name(place, key)
        if store.exists(name):
            return {"present": 1}
        # From here on the engine may have its memory back.
        if not job.carry(key, lambda: copied.append(self._rows[chunk].copy())):
            return {"failed": 1}
        header = block_header(place.identity, self._layout, key, self.block_size_bytes)
        entry = encode_entry(header, copied[0])
        store.put(name, entry)
        return {"published": 1, "published_bytes": len(entry)}

    # --- jobs ---------------------------------------------------------------------------------

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._collect()
        ended, self._ended = self._ended, []
        return ended

    def drain_jobs(self) -> None:
        while self._jobs:
            self._collect()
            if self._jobs:
                time.sleep(_DRAIN_S)

    def shutdown(self) -> None:
        for _, job in self._jobs.values():
            job.give_up()
        self._threads.close()
        self._sender.close()
        del self._rows  # the memory it shows is unmapped next

    def _submit(self, told: TransferJob) -> Job[OffloadKey]:
        job = Job(tuple(told.keys))
        self._jobs[told.job_id] = told, job
        return job

    def _collect(self) -> None:
        for number, (told, job) in list(self._jobs.items()):
            given_up = job.given_up
            if not job.over(self._patience.stall_s):
                continue
            if job.given_up and not given_up:
                self._stalled("a load" if told.is_promotion else "a store")
            del self._jobs[number]
            done = list(job.done)
            if told.is_promotion:
                self._loaded(told, job, done)
            self._ended.append(
                JobResult(
                    number,
                    success=len(done) == len(told.keys),
                    successful_keys=done,
                    transfer_time=time.monotonic() - job.begun_s,
                    transfer_bytes=len(done) * self.block_size_bytes,
                )
            )

    def _loaded(
        self, told: TransferJob, job: Job[OffloadKey], done: Collection[OffloadKey]
    ) -> None:
        """Blocks that did not come are misses from now on, or vLLM would ask for them forever."""
        account = self._accounts.get(told.req_context.req_id)
        if account is None:
            return
        for key in set(told.keys).difference(done):
            look = self._looks.get(self._name(account.place, key))
            if look is not None:
                look.found = False
        if done:
            first, now_s = not account.loaded_until_s, time.monotonic()
            since_s = max(job.begun_s, account.loaded_until_s)
            account.loaded_until_s = now_s
            account.add(loads=int(first), load_s=now_s - since_s)
        self._threads.do(partial(self._tell, account))

    def _failed(self, job: Job[OffloadKey], account: _Account) -> None:
        job.fail()
        account.add(failed=1)

    def _stalled(self, what: str) -> None:
        _log.warning("the object store does not answer; %s of prefixes was given up", what)
        self._patience.lost()

    def _warn(self, what: str, error: Exception) -> None:
        """Now and then: a store that fails does so for each block."""
        now_s = time.monotonic()
        if now_s - self._warned_s >= WARN_S:
            self._warned_s = now_s
            _log.warning("%s: %r", what, error)

    # --- what they share ----------------------------------------------------------------------

    def _tell(self, account: _Account, ended: int = 0) -> None:
        with account.lock:
            told, account.sum = account.sum, Receipt("")
        place = account.place
        receipt = msgspec.structs.replace(told, call=place.call, ended=ended)
        self._sender.send(place.address, receipt)

    def _store(self, place: Place) -> ObjectStore:
        if place.store not in self._stores:
            self._stores[place.store] = ObjectStore(place.store)
        return self._stores[place.store]

    def _name(self, place: Place, key: OffloadKey) -> str:
        return block_name(place.identity, self._layout, key)
