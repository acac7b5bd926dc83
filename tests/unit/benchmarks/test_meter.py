"""CPU time is booked to whoever used it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from benchmarks.large.meter import Meter, MeteredLoop

WORK_S = 0.03


def burn() -> None:
    ends_s = time.thread_time() + WORK_S
    while time.thread_time() < ends_s:
        pass


def run(meter: Meter, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=lambda: MeteredLoop(meter)) as runner:
        runner.run(main())


def near(times: int) -> object:
    return pytest.approx(times * WORK_S, abs=0.5 * WORK_S)


def test_turns_of_an_awaitable_are_booked_and_those_of_others_are_not() -> None:
    meter = Meter()

    async def frames() -> AsyncGenerator[int, None]:
        for number in range(2):
            burn()
            await asyncio.sleep(1.0)
            yield number

    async def main() -> None:
        made = frames()
        other = asyncio.create_task(asyncio.to_thread(burn))  # in the middle of a wait
        while await meter.timed(anext(made, None)) is not None:
            burn()
        await other

    run(meter, main)
    assert meter.cpu_s == near(2)


def test_tasks_and_timers_begun_in_a_turn_are_booked_there() -> None:
    meter = Meter()

    async def life() -> None:
        await asyncio.sleep(1.0)
        burn()

    async def begin() -> asyncio.Task[None]:
        asyncio.get_running_loop().call_later(0.5, burn)
        return asyncio.create_task(life())

    async def main() -> None:
        task = await meter.timed(begin())
        burn()
        await task

    run(meter, main)
    assert meter.cpu_s == near(2)


def test_errors_and_cancellation_pass_through() -> None:
    meter = Meter()
    ended: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(1.0)
        raise ValueError("no")

    async def waits() -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            ended.append("cancelled")

    async def main() -> None:
        with pytest.raises(ValueError, match="no"):
            await meter.timed(fails())
        task = asyncio.create_task(waiting())
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    async def waiting() -> None:
        await meter.timed(waits())

    run(meter, main)
    assert ended == ["cancelled"]
