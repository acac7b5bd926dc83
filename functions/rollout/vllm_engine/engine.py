"""The vLLM engine: an ``Engine`` on vLLM's AsyncLLM, for GPUs; on CPUs it is tested.

Several calls may run at once; vLLM batches them. The weights are brought to a version in place
(``updating``). What other calls have under way is ended first, with its tokens, and handed back by
them, so that no response mixes versions.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from functions.context import CallContext
from functions.modeling import PullStats, model_config
from functions.readings import Reading
from functions.rollout.engine import RolloutFrame
from functions.rollout.request import check_roster
from functions.rollout.roster import Roster
from functions.rollout.vllm_engine.arguments import engine_arguments
from functions.rollout.vllm_engine.generation import Generation, Serving
from functions.rollout.vllm_engine.kv_prefill import prefill
from functions.rollout.vllm_engine.kv_use import KvSizes, KvUse, kv_token_bytes
from functions.rollout.vllm_engine.offload import host_bytes_of
from functions.rollout.vllm_engine.receipts import Receipts
from functions.rollout.vllm_engine.runtime import Runtime
from functions.rollout.vllm_engine.speculation import check_sampling
from functions.rollout.vllm_engine.stats import EngineStats
from functions.rollout.vllm_engine.updating import Updater
from rlhfless.engines import EngineOptions
from rlhfless.errors import InternalError, TransientError
from rlhfless.messages import ModelRef, PrefillDone, PrefillRequest, PrefixUse, RolloutRequest
from rlhfless.objects import ObjectStore

DEFAULT_BATCH = 256


class VllmEngine:
    """An ``Engine``, for threads that call it at once. ``workdir``: for adapters; None: where
    temporary files go."""

    def __init__(
        self, options: EngineOptions, accelerator: str, workdir: str | None = None
    ) -> None:
        self._options = options
        self._accelerator = accelerator
        self._stats = EngineStats()
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._receipts: Receipts | None = None  # None: it stores no keys and values
        self._host_bytes = 0
        self._updater = Updater(workdir, adapters=options.lora_rank > 0)
        self._base = ("", "")
        self._config: Any = None
        self._calls = itertools.count(1)
        self._thread = threading.local()  # ``pulled``: for the call that this thread is to run

    def ensure(self, ref: ModelRef, store: ObjectStore) -> PullStats:
        """Raises ``TransientError`` if the version cannot be had: the engine has the one before."""
        with self._lock:
            began = time.perf_counter()
            load_s = 0.0
            if self._runtime is None or self._runtime.dead or self._base != (ref.path, ref.dtype):
                self._start(ref)
                load_s = time.perf_counter() - began
            pulled = self._update(ref, store)
            pulled = PullStats(pulled.seconds, pulled.bytes, load_s)
            self._thread.pulled = pulled
            return pulled

    def run(self, request: RolloutRequest, context: CallContext) -> Iterator[RolloutFrame]:
        pulled: PullStats = getattr(self._thread, "pulled", PullStats())
        name = f"call-{next(self._calls)}"
        runtime, serving, kv = self._served(name, request.model, request.prefix, context)
        most = self._options.max_batch or DEFAULT_BATCH
        serving = replace(serving, max_batch=min(request.max_batch or most, most))
        try:
            roster = Roster.of(request)
            check_roster(roster, serving.config)
            check_sampling(self._options, request.sampling)
            generation = Generation(name, request, roster, context, runtime, serving)
            yield from generation.frames()
            done = generation.done()
            yield msgspec.structs.replace(
                kv.entered_in(done) if kv is not None else done,
                weights_pull_s=pulled.seconds,
                weights_bytes=pulled.bytes,
            )
        finally:
            if kv is not None:
                kv.end()

    def prefill(self, request: PrefillRequest, context: CallContext) -> PrefillDone:
        pulled: PullStats = getattr(self._thread, "pulled", PullStats())
        name = f"call-{next(self._calls)}"
        use = PrefixUse(cuts=[], publish=True)
        runtime, serving, kv = self._served(name, request.model, use, context)
        done = PrefillDone()
        if kv is not None:
            try:
                check_roster(Roster(request.prompts, [], request.cuts), serving.config)
                done = prefill(name, request, context, runtime, serving, kv)
            finally:
                kv.end()
        return msgspec.structs.replace(
            done, weights_pull_s=pulled.seconds, weights_bytes=pulled.bytes
        )

    def readings(self) -> Sequence[Reading]:
        return list(self._stats.readings())

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _served(
        self, name: str, ref: ModelRef, use: PrefixUse | None, context: CallContext
    ) -> tuple[Runtime, Serving, KvUse | None]:
        """Raises ``TransientError`` if other weights are served by now."""
        with self._lock:
            if self._runtime is None:
                raise InternalError("no version has been loaded yet")
            if not self._updater.shows(ref):
                raise TransientError("this instance serves other weights now")
            kv = None
            if self._receipts is not None:
                sizes = KvSizes(
                    block_tokens=self._stats.block_tokens,
                    token_bytes=kv_token_bytes(self._config, ref.dtype),
                    host_bytes=self._host_bytes,
                )
                kv = KvUse(name, ref, context.store.url, use, self._receipts, sizes)
            serving = Serving(
                config=self._config,
                version=ref.version,
                salt=self._updater.salt,
                epoch=self._runtime.epoch,
                max_batch=0,
                adapter=self._updater.adapter,
                transfer=None if kv is None else kv.transfer,
            )
            return self._runtime, serving, kv

    def _start(self, ref: ModelRef) -> None:
        self._stop()
        self._config = model_config(ref.path)
        arguments = engine_arguments(ref, self._options, self._accelerator)
        self._runtime = Runtime(arguments, self._stats)
        kv = arguments.kv_transfer_config
        self._receipts = Receipts() if kv is not None else None
        self._host_bytes = host_bytes_of(kv) if kv is not None else 0
        self._stats.starts += 1
        self._base = (ref.path, ref.dtype)

    def _stop(self) -> None:
        runtime, self._runtime = self._runtime, None
        self._base = ("", "")
        self._updater.reset()
        receipts, self._receipts = self._receipts, None
        if runtime is not None:
            runtime.close()
        if receipts is not None:
            receipts.close()

    def _update(self, ref: ModelRef, store: ObjectStore) -> PullStats:
        assert self._runtime is not None
        if self._updater.shows(ref):
            return PullStats()
        began = time.perf_counter()
        try:
            size = self._updater.update(self._runtime, ref, store)
        except BaseException:
            self._stats.failed_updates += 1
            if self._updater.broken:
                self._stop()
            raise
        seconds = time.perf_counter() - began
        self._stats.updated(seconds, size)
        return PullStats(seconds, size)
