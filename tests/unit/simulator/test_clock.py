import asyncio

import pytest

from simulator import clock
from simulator.clock import Deadlock, Livelock, run


def test_time_jumps_from_timer_to_timer() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen = []

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append(loop.time())

        async with asyncio.TaskGroup() as group:
            for seconds in (5000.0, 3.0, 40.0):
                group.create_task(sleeper(seconds))
        return seen

    assert run(main()) == [3.0, 40.0, 5000.0]


def test_timeouts_and_queues_work() -> None:
    async def main() -> float:
        queue: asyncio.Queue[int] = asyncio.Queue()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await queue.get()
        return asyncio.get_running_loop().time()

    assert run(main()) == 30.0


def test_a_deadlock_names_who_waits_and_where() -> None:
    async def waits_for_nobody() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(waits_for_nobody(), name="the-waiter")

    with pytest.raises(Deadlock, match=r"the-waiter: waits in .*waits_for_nobody"):
        run(main())


def test_the_same_program_gives_the_same_order() -> None:
    async def main() -> list[str]:
        order = []

        async def worker(name: str, pause: float) -> None:
            for _ in range(3):
                await asyncio.sleep(pause)
                order.append(name)

        async with asyncio.TaskGroup() as group:
            for name, pause in (("a", 0.5), ("b", 0.3), ("c", 0.5)):
                group.create_task(worker(name, pause))
        return order

    assert run(main()) == run(main())


def test_tasks_that_never_let_time_pass_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "MOST_ROUNDS", 100)

    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(spin(), name="the-spinner")

    with pytest.raises(Livelock, match=r"still at 0 s[^$]*the-spinner: waits in"):
        run(main())


def test_a_cancelled_group_ends_in_the_order_it_began() -> None:
    async def main() -> list[int]:
        order = []

        async def worker(number: int) -> None:
            try:
                await asyncio.sleep(10)
            finally:
                order.append(number)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), asyncio.TaskGroup() as group:
                for number in range(50):
                    group.create_task(worker(number))
        return order

    assert run(main()) == list(range(50))
