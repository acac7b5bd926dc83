"""vLLM's AsyncLLM, on an event loop of its own, for handlers that run in threads.

What is asked of it from any thread is done in the loop, in the order in which it was asked. Deltas
of a generation are put into a queue of whoever asked for it.

Weights are exchanged while nothing is generated. Every request says which weights it means
(``epoch``), and one that comes late, in the loop or in vLLM, is ended instead of being answered by
other weights.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from functions.rollout.vllm_engine.answering import Answer
from functions.rollout.vllm_engine.asking import Delta, Deltas, Generate, Manner
from functions.rollout.vllm_engine.plugin import vllm_starts
from functions.rollout.vllm_engine.stats import EngineStats
from functions.rollout.vllm_engine.stats_logger import StatsLogger
from rlhfless.errors import CapacityError, TransientError, UserError

_T = TypeVar("_T")
STOP_S = 1.0
"""How long vLLM's processes have to end by themselves."""
WATCH_S = 0.5
"""vLLM does not answer what its core was asked when it died: look as often whether it has."""
AGAIN_S = 0.02
"""A request on its way to vLLM cannot be aborted yet: try again after this."""


class Runtime:
    """Raises ``UserError`` for what vLLM cannot serve, ``CapacityError`` if the engine does not
    start, and ``TransientError`` from then on when it has died or is closed. Adds to ``stats``."""

    def __init__(self, arguments: AsyncEngineArgs, stats: EngineStats) -> None:
        self.stats = stats
        self.epoch = 0
        """Changes whenever the weights may."""
        self._lock = threading.Lock()
        self._closed = False
        self._answers: dict[str, Answer] = {}
        self._llm: AsyncLLM | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        try:
            self._llm = self.do(self._start(arguments))
        except BaseException:
            self._end_loop()
            raise

    async def _start(self, arguments: AsyncEngineArgs) -> AsyncLLM:
        def logger(*given: Any) -> StatsLogger:
            return StatsLogger(self.stats, *given)

        try:
            config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
        except (ValueError, NotImplementedError) as error:
            raise UserError(f"vLLM cannot serve this: {_last(error)}", param="rollout") from error
        try:
            with vllm_starts():
                return AsyncLLM.from_vllm_config(config, stat_loggers=[logger])
        except (RuntimeError, ValueError, MemoryError) as error:
            raise CapacityError(f"vLLM could not start: {_last(error)}") from error

    @property
    def llm(self) -> AsyncLLM:
        """For what ``do`` is to run."""
        assert self._llm is not None
        return self._llm

    @property
    def dead(self) -> bool:
        return self._closed or (self._llm is not None and bool(self._llm.errored))

    def do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` in the engine's loop, and wait for it."""
        future = self._scheduled(work)
        if future is None:
            raise _going()
        while not concurrent.futures.wait([future], timeout=WATCH_S).done:
            if self.dead:
                future.cancel()
        try:
            return future.result()
        except (EngineDeadError, concurrent.futures.CancelledError) as error:
            raise TransientError("vLLM's engine has died; it is started again") from error

    def generate(self, requests: Sequence[Generate], manner: Manner, deltas: Deltas) -> None:
        """See ``asking.Asked``."""
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._begin, requests, manner, deltas)
                return
        for request in requests:
            deltas.put(Delta(request.key, error=_going()))

    def abort(self, ids: Sequence[str]) -> None:
        """See ``asking.Asked``."""
        future = self._scheduled(self._ended(ids))
        if future is not None:
            concurrent.futures.wait([future])

    def exchange(self, work: Callable[[AsyncLLM], Coroutine[Any, Any, None]]) -> None:
        """Run ``work``, which changes the weights, while nothing is generated.

        What is under way is ended with the tokens it has; all that vLLM's own cache holds of the
        old weights is dropped. If ``work`` fails, the engine generates nothing more.
        """
        self.do(self._exchange(work))

    def close(self) -> None:
        """End the engine and its processes; whoever waits for deltas is told."""
        future = self._scheduled(self._stop(), last=True)
        if future is not None:
            concurrent.futures.wait([future])
            self._end_loop()
            future.result()

    # --- in the loop --------------------------------------------------------------------------

    def _begin(self, requests: Iterable[Generate], manner: Manner, deltas: Deltas) -> None:
        for asked in requests:
            if manner.epoch != self.epoch:
                deltas.put(Delta(asked.key, end="abort"))
                continue
            answer = Answer(asked, manner, deltas)
            answer.task = self._loop.create_task(answer.run(self.llm), name=asked.id)
            answer.task.add_done_callback(self._over)
            self._answers[asked.id] = answer
        self.stats.asked = len(self._answers)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._answers.pop(task.get_name()).over()
        self.stats.asked = len(self._answers)

    async def _ended(self, ids: Collection[str]) -> None:
        while left := [name for name in ids if name in self._answers]:
            tasks = [self._answers[name].task for name in left]
            if self.dead:
                for task in tasks:
                    task.cancel()
            else:
                with contextlib.suppress(EngineDeadError):
                    await self.llm.abort(left)
            await asyncio.wait(tasks, timeout=AGAIN_S)
            await asyncio.sleep(0)  # their callbacks

    async def _exchange(self, work: Callable[[AsyncLLM], Coroutine[Any, Any, None]]) -> None:
        self.epoch += 1
        await self.llm.pause_generation(mode="abort", clear_cache=True)
        await self._ended(list(self._answers))  # what vLLM has been given since
        await work(self.llm)
        await self.llm.resume_generation()

    async def _stop(self) -> None:
        await _cancelled([answer.task for answer in self._answers.values()])
        self.llm.shutdown(timeout=STOP_S)
        await _cancelled(asyncio.all_tasks() - {asyncio.current_task()})  # whoever waits is told

    # ------------------------------------------------------------------------------------------

    def _scheduled(
        self, work: Coroutine[Any, Any, _T], *, last: bool = False
    ) -> concurrent.futures.Future[_T] | None:
        """None: the runtime is closed. ``last``: it is, from now on."""
        with self._lock:
            if self._closed:
                work.close()
                return None
            self._closed = last
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _end_loop(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancelled(tasks: Collection[asyncio.Task[Any] | None]) -> None:
    wanted = [task for task in tasks if task is not None]
    for task in wanted:
        task.cancel()
    await asyncio.gather(*wanted, return_exceptions=True)
    await asyncio.sleep(0)  # their callbacks


def _going() -> TransientError:
    return TransientError("vLLM's engine is going away")


def _last(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
