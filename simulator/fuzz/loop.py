"""The virtual loop of a fuzzed job: work handed to threads takes time, as it does outside."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar

from simulator.clock import VirtualTimeLoop
from simulator.fuzz.life import Killed, current_life

T = TypeVar("T")


class FuzzLoop(VirtualTimeLoop):
    """A thread's work is done when it is handed over, or when its result comes, ``mean_s`` later on
    average (a third of the time at once). A cancelled waiter does not stop it."""

    def __init__(self, rng: random.Random, mean_s: float) -> None:
        super().__init__()
        self._rng = rng
        self._mean_s = mean_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        if self._mean_s == 0 or self._rng.random() < 1 / 3:
            return super().run_in_executor(executor, func, *args)
        life = current_life.get()
        future: asyncio.Future[T] = self.create_future()
        at_once = self._rng.random() < 0.5
        done = super().run_in_executor(executor, func, *args) if at_once else None

        def finish() -> None:
            if done is None and life is not None and not life.alive:
                if not future.done():
                    future.set_exception(Killed("the controller is dead"))
                return
            outcome = done or super(FuzzLoop, self).run_in_executor(executor, func, *args)
            error = outcome.exception()  # looked at also where nobody waits any more
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(outcome.result())

        self.call_later(self._rng.expovariate(1 / self._mean_s), finish)
        return future
