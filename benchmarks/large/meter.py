"""CPU seconds of a part of a program whose tasks all run on one event loop.

A coroutine runs in short turns, from one wait to the next, and turns of controller and platform
follow each other on one thread. ``Meter.timed`` stands around an awaitable and books each of its
turns; ``MeteredLoop`` books the tasks and timers that were begun during such a turn. What is left
of the process's CPU time belongs to the others.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from simulator.clock import VirtualTimeLoop

T = TypeVar("T")
_cpu_s = time.thread_time


class Meter:
    """``cpu_s`` of what was timed. Turns within turns are booked once."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.inside = False

    def timed(self, awaitable: Awaitable[T]) -> _Timed[T]:
        return _Timed(self, awaitable)

    def call(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        """A turn of its own."""
        if self.inside:
            return work(*args, **named)
        began_s = _cpu_s()
        self.inside = True
        try:
            return work(*args, **named)
        finally:
            self.inside = False
            self.cpu_s += _cpu_s() - began_s


class _Timed(Awaitable[T]):
    def __init__(self, meter: Meter, awaitable: Awaitable[T]) -> None:
        self._meter = meter
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, T]:
        meter, turns = self._meter, self._awaitable.__await__()
        turn: Callable[..., Any] = turns.send
        value: Any = None
        while True:
            try:
                waited = meter.call(turn, value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                value = yield waited
                turn = turns.send
            except BaseException as error:
                value, turn = error, turns.throw  # type: ignore[attr-defined]


class MeteredLoop(VirtualTimeLoop):
    """What is begun in a turn of ``meter`` is booked there, too. ``events``: callbacks run."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter
        self.events = 0
        make = self.get_task_factory()
        assert make is not None

        def metered(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
            return make(loop, self._booked(coro) if meter.inside else coro, **options)

        self.set_task_factory(metered)

    async def _booked(self, coro: Any) -> Any:
        return await self._meter.timed(coro)

    def call_at(self, when: float, callback: Any, *args: Any, **options: Any) -> Any:
        if self._meter.inside:
            return super().call_at(when, self._meter.call, callback, *args, **options)
        return super().call_at(when, callback, *args, **options)

    def call_soon(self, callback: Any, *args: Any, **options: Any) -> Any:
        self.events += 1
        return super().call_soon(callback, *args, **options)


class Collections:
    """CPU seconds of the garbage collector, whoever set it off."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._began_s = 0.0

    def __enter__(self) -> Collections:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = _cpu_s()
        else:
            self.cpu_s += _cpu_s() - self._began_s
