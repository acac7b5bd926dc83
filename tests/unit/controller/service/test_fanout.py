"""Streams that share one reader: nothing is missed, nothing comes twice, whoever is slow."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import fakeredis
import pytest

from controller.service import fanout as module
from controller.service.events import START, Events, JobEvent
from controller.service.fanout import Fanout


def event(number: int) -> JobEvent:
    return JobEvent(type="step", message=f"step {number}", data={"step": number})


def with_fanout(test: Callable[[Fanout, Events], Awaitable[None]]) -> None:
    async def main() -> None:
        redis = fakeredis.FakeAsyncRedis()
        events = Events(redis)
        await test(Fanout(events), events)
        await redis.aclose()

    asyncio.run(main())


async def collect(
    fanout: Fanout, job: str, last: int, after: str = START, rest_s: float = 0.0
) -> list[int]:
    """Numbers of the job's events up to ``last``."""
    seen: list[int] = []
    async with contextlib.aclosing(fanout.follow(job, after, pause_s=0.05)) as following:
        async for events in following:
            seen += [one.data["step"] for one in events]
            if last in seen:
                return seen
            await asyncio.sleep(rest_s)
    raise AssertionError("a follower never ends by itself")


def test_each_follower_sees_old_and_new_events_once() -> None:
    async def test(fanout: Fanout, events: Events) -> None:
        for job in ("a", "b"):
            await events.append(job, event(0))
        third = (await events.read("a")).data[0].id
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(collect(fanout, "a", 20)) for _ in range(5)]
            tasks += [group.create_task(collect(fanout, "b", 20)) for _ in range(5)]
            late = group.create_task(collect(fanout, "a", 20, after=third))
            for number in range(1, 21):
                for job in ("a", "b"):
                    await events.append(job, event(number))
                if number == 10:
                    tasks.append(group.create_task(collect(fanout, "a", 20)))
        assert all(task.result() == list(range(21)) for task in tasks)
        assert late.result() == list(range(1, 21))

    with_fanout(test)


def test_one_that_is_too_slow_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)

    async def test(fanout: Fanout, events: Events) -> None:
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(collect(fanout, "a", 60, rest_s=0.02))
            quick = group.create_task(collect(fanout, "a", 60))
            for number in range(61):
                await events.append("a", event(number))
                await asyncio.sleep(0.002)
        assert slow.result() == quick.result() == list(range(61))

    with_fanout(test)


def test_a_defect_ends_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)

    async def test(fanout: Fanout, events: Events) -> None:
        wait, failures = events.wait, iter([ValueError("not an event")])

        async def failing(*args: Any) -> dict[str, list[JobEvent]]:
            for failure in failures:
                raise failure
            return await wait(*args)

        monkeypatch.setattr(events, "wait", failing)
        async with asyncio.TaskGroup() as group:
            told = group.create_task(collect(fanout, "a", 1))
            await asyncio.sleep(0.05)
            for number in range(2):
                await events.append("a", event(number))
        assert told.result() == [0, 1]

    with_fanout(test)


def test_the_reader_ends_with_the_last_follower() -> None:
    async def test(fanout: Fanout, events: Events) -> None:
        await events.append("a", event(0))
        assert await collect(fanout, "a", 0) == [0]
        readers = [task for task in asyncio.all_tasks() if task.get_name() == "fanout"]
        if readers:
            await asyncio.wait(readers, timeout=10)
        assert all(reader.cancelled() for reader in readers)

    with_fanout(test)
