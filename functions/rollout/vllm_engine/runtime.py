"""vLLM's AsyncLLM, on an event loop of its own, for handlers that run in threads.

What is asked of it from any thread is done in the loop. Deltas of a generation are put into a queue
of whoever asked for it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from vllm import SamplingParams, TokensPrompt
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from functions.rollout.vllm_engine.stats import EngineStats, StatsLogger
from rlhfless.errors import CapacityError, TransientError

_T = TypeVar("_T")
End: TypeAlias = Literal["stop", "length", "abort"]
STOP_S = 1.0


@dataclass(frozen=True)
class Delta:
    """What a generation has gained. ``end``: ``stop``, ``length``, ``abort``; None while it goes
    on. ``cached``: prompt tokens that were not run; told by the first delta. ``error``: it failed.
    """

    key: int
    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    cached: int = 0
    end: End | None = None
    error: BaseException | None = None


Deltas = queue.SimpleQueue[Delta]


@dataclass(frozen=True)
class Generate:
    """One sample to generate. ``id`` is unique over the engine's life; ``key`` is the asker's."""

    id: str
    key: int
    prompt: TokensPrompt
    params: SamplingParams
    lora: LoRARequest | None = None


class Runtime:
    """Raises ``CapacityError`` if the engine cannot be started, and ``TransientError`` from then on
    when it has died."""

    def __init__(self, arguments: AsyncEngineArgs) -> None:
        self.stats = EngineStats()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()
        try:
            self._llm: AsyncLLM = self.do(self._start(arguments))
        except BaseException:
            self._end_loop()
            raise

    async def _start(self, arguments: AsyncEngineArgs) -> AsyncLLM:
        def logger(*given: Any) -> StatsLogger:
            return StatsLogger(self.stats, *given)

        try:
            return AsyncLLM.from_engine_args(arguments, stat_loggers=[logger])
        except (RuntimeError, ValueError, MemoryError) as error:
            text = str(error).strip() or type(error).__name__
            raise CapacityError(f"vLLM could not start: {text.splitlines()[-1]}") from error

    @property
    def llm(self) -> AsyncLLM:
        """For what ``do`` is to run."""
        return self._llm

    @property
    def dead(self) -> bool:
        return bool(self._llm.errored)

    def do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` in the engine's loop, and wait for it."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except EngineDeadError as error:
            raise TransientError("vLLM's engine has died; it is started again") from error
        except concurrent.futures.CancelledError as error:
            raise TransientError("vLLM's engine is going away") from error

    def generate(self, requests: Sequence[Generate], deltas: Deltas) -> None:
        """Begin; everything comes in ``deltas``, for each request a last one that says its end."""

        def begin() -> None:
            for request in requests:
                task = self._loop.create_task(self._generating(request, deltas), name=request.id)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        self._loop.call_soon_threadsafe(begin)

    def abort(self, ids: Sequence[str]) -> None:
        """End generations; their last deltas say ``abort``, or how they ended just before."""
        if ids:
            self.do(self._llm.abort(list(ids)))

    async def _generating(self, request: Generate, deltas: Deltas) -> None:
        ended = False
        cached: int | None = None
        try:
            async for output in self._llm.generate(
                request.prompt, request.params, request.id, lora_request=request.lora
            ):
                found = output.outputs[0]
                fresh = output.num_cached_tokens or 0 if cached is None else 0
                cached = cached or fresh
                logprobs = found.logprobs or ()
                tokens = found.token_ids
                ended = found.finish_reason is not None
                deltas.put(
                    Delta(
                        key=request.key,
                        tokens=tokens,
                        logprobs=[of[t].logprob for t, of in zip(tokens, logprobs, strict=True)],
                        cached=fresh,
                        end=found.finish_reason,
                    )
                )
        except Exception as error:  # the boundary of the task: whoever asked is told
            deltas.put(Delta(key=request.key, error=error))
            return
        if not ended:
            deltas.put(Delta(key=request.key, end="abort"))

    def close(self) -> None:
        """End the engine and its processes."""
        with contextlib.suppress(TransientError):
            self.do(self._stop())
        self._end_loop()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._llm.shutdown(timeout=STOP_S)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
