"""The vLLM engine: an ``Engine`` on vLLM's AsyncLLM, for GPUs; on CPUs it is tested.

Several calls may run at once; vLLM batches them. Weights are brought to a version in place, through
vLLM's weight-transfer interface (``weights``). What other calls have under way is ended first, with
its tokens, and handed back by them, so that no response mixes versions.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

from functions.context import CallContext
from functions.modeling import PullStats, model_config
from functions.rollout.engine import RolloutFrame
from functions.rollout.request import check_roster
from functions.rollout.roster import Roster
from functions.rollout.vllm_engine.arguments import engine_arguments
from functions.rollout.vllm_engine.generation import Generation, Serving
from functions.rollout.vllm_engine.runtime import Runtime
from functions.weights.tensors import num_bytes
from rlhfless.engines import EngineOptions
from rlhfless.errors import InternalError, TransientError
from rlhfless.messages import ModelRef, PrefillDone, PrefillRequest, RolloutRequest
from rlhfless.objects import ObjectStore
from rlhfless.versions import read_manifest

DEFAULT_BATCH = 256
_log = logging.getLogger(__name__)


class VllmEngine:
    """An ``Engine``, for threads that call it at once."""

    def __init__(self, options: EngineOptions, accelerator: str) -> None:
        self._options = options
        self._accelerator = accelerator
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._base = ("", "")
        self._shown = ("", 0)  # job and version of the weights
        self._config: Any = None
        self._pulled = PullStats()
        self._calls = itertools.count(1)

    def ensure(self, ref: ModelRef, store: ObjectStore) -> PullStats:
        with self._lock:
            began = time.perf_counter()
            load_s = 0.0
            if self._runtime is None or self._runtime.dead or self._base != (ref.path, ref.dtype):
                self._start(ref)
                load_s = time.perf_counter() - began
            wanted = (ref.job, ref.version) if ref.version else ("", 0)
            if self._shown == wanted:
                self._pulled = PullStats(load_s=load_s)
                return self._pulled
            began = time.perf_counter()
            size = self._update(ref, store)
            self._shown = wanted
            self._pulled = PullStats(time.perf_counter() - began, size, load_s)
            return self._pulled

    def run(self, request: RolloutRequest, context: CallContext) -> Iterator[RolloutFrame]:
        with self._lock:
            runtime, config, pulled = self._running(), self._config, self._pulled
            job, version = self._shown
            most = self._options.max_batch or DEFAULT_BATCH
            serving = Serving(
                config=config,
                version=request.model.version,
                salt=f"{job}:{version}",
                max_batch=min(request.max_batch or most, most),
            )
            if (job, version) != ((request.model.job, version) if version else ("", 0)):
                raise TransientError("other weights are served now")
        roster = Roster.of(request)
        check_roster(roster, config)
        name = f"call-{next(self._calls)}"
        generation = Generation(name, request, roster, context, runtime, serving)
        yield from generation.frames()
        yield msgspec.structs.replace(
            generation.done(), weights_pull_s=pulled.seconds, weights_bytes=pulled.bytes
        )

    def prefill(self, request: PrefillRequest, context: CallContext) -> PrefillDone:
        raise NotImplementedError

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _running(self) -> Runtime:
        if self._runtime is None:
            raise InternalError("no version has been loaded yet")
        return self._runtime

    def _start(self, ref: ModelRef) -> None:
        self._stop()
        self._config = model_config(ref.path)
        self._runtime = Runtime(engine_arguments(ref, self._options, self._accelerator))
        self._base, self._shown = (ref.path, ref.dtype), ("", 0)

    def _stop(self) -> None:
        runtime, self._runtime = self._runtime, None
        self._base, self._shown = ("", ""), ("", 0)
        if runtime is not None:
            runtime.close()

    def _update(self, ref: ModelRef, store: ObjectStore) -> int:
        """Bring the workers to a version; the bytes each of them read."""
        size = 0
        if ref.version:
            manifest = read_manifest(store, ref.job, ref.version)
            if manifest is None:
                raise TransientError(
                    f"version {ref.version} of job {ref.job} is not in the store {store.url}"
                )
            size = num_bytes(manifest)
        runtime = self._running()
        update = {"store": store.url, "job": ref.job, "version": ref.version}
        try:
            runtime.do(_pull(runtime, update, f"{ref.job}:{ref.version}"))
        except Exception as error:
            # What its workers hold now is neither version.
            self._stop()
            text = str(error).strip() or type(error).__name__
            raise TransientError(
                f"vLLM could not take version {ref.version} of job {ref.job}: "
                f"{text.splitlines()[-1]}"
            ) from error
        return size


async def _pull(runtime: Runtime, update: dict[str, Any], version: str) -> None:
    llm = runtime.llm
    # What runs is ended with what it has; keys and values of the old weights go.
    await llm.pause_generation(mode="abort", clear_cache=True)
    await llm.start_weight_update()
    await llm.update_weights(WeightTransferUpdateRequest(update_info=update))
    await llm.finish_weight_update(weight_version=version)
    await llm.resume_generation()
