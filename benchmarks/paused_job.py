"""A whole job on the local platform that stands still while something else is measured.

Everything is as ``rlhfless run`` does it: function processes, Redis, object store, journal. Only
the event loop's clock is special: it leaves out the time in which the peer had the machine. The
controller takes all its times from that clock: neither its metrics nor its time-outs see a gap.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from controller.job import Event
from controller.local_run import run_local
from controller.run_folder import RunFolder
from rlhfless.spec import JobSpec


class PausableLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can leave time out."""

    away_s = 0.0

    def time(self) -> float:
        return super().time() - self.away_s

    def away(self, work: Callable[[], object]) -> None:
        """Do ``work``, blocking the loop, and leave its time out."""
        start = time.monotonic()
        work()
        self.away_s += time.monotonic() - start


class _CountedThreads(ThreadPoolExecutor):
    """Threads that can be waited for."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="job")
        self._running: set[Future[Any]] = set()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def wait(self) -> None:
        concurrent.futures.wait(set(self._running))


def run(spec: JobSpec, folder: str, between: Callable[[], None]) -> list[dict[str, float]]:
    """Run the job in ``folder``, return its steps' metrics (``docs/metrics.md``); ``between`` has
    the machine for itself before each step.

    The pause comes when a step has been planned. Work that was left to threads beside it is waited
    for first, on our clock.
    """
    steps: list[dict[str, float]] = []
    run_folder = RunFolder(folder)
    run_folder.create(spec)

    async def job() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PausableLoop)
        threads = _CountedThreads()
        loop.set_default_executor(threads)

        def observe(event: Event) -> None:
            if event.kind == "rollout":
                threads.wait()
                loop.away(between)
            elif event.kind == "step":
                steps.append(event.data["metrics"])

        await run_local(run_folder, spec, observe)

    try:
        with asyncio.Runner(loop_factory=PausableLoop) as runner:
            runner.run(job())
    finally:
        run_folder.close()
    return steps
