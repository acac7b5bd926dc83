import asyncio
from collections.abc import Awaitable, Callable

import fakeredis
import pytest

from controller.fencing import Fence, LostLeaseError, fence_key
from controller.service.events import START, Events, JobEvent, check_cursor
from rlhfless.errors import TransientError, UserError


def with_events(test: Callable[[Events, fakeredis.FakeAsyncRedis], Awaitable[None]]) -> None:
    async def main() -> None:
        redis = fakeredis.FakeAsyncRedis()
        await test(Events(redis), redis)
        await redis.aclose()

    asyncio.run(main())


def event(number: int) -> JobEvent:
    return JobEvent(type="step", message=f"step {number}", data={"step": number})


def numbers(events: list[JobEvent]) -> list[int]:
    return [found.data["step"] for found in events]


def test_events_come_in_the_order_they_were_appended() -> None:
    async def test(events: Events, redis: fakeredis.FakeAsyncRedis) -> None:
        for number in range(20):
            assert await events.append("job", event(number))
        page = await events.read("job")
        assert numbers(page.data) == list(range(20))
        assert not page.has_more
        assert page.data[3].message == "step 3"
        assert page.data[0].created_at <= page.data[-1].created_at
        assert (await events.read("other")).data == []

    with_events(test)


@pytest.mark.parametrize("limit", [1, 3, 10, 11])
def test_pages_join_without_gap_or_overlap(limit: int) -> None:
    async def test(events: Events, redis: fakeredis.FakeAsyncRedis) -> None:
        for number in range(10):
            await events.append("job", event(number))
        cursor, seen, more = START, [], True
        while more:
            page = await events.read("job", cursor, limit)
            assert len(page.data) <= limit
            seen += page.data
            cursor, more = page.data[-1].id, page.has_more
        assert numbers(seen) == list(range(10))
        assert (await events.read("job", cursor)).data == []

    with_events(test)


def test_a_named_event_is_said_once() -> None:
    async def test(events: Events, redis: fakeredis.FakeAsyncRedis) -> None:
        assert await events.append("job", event(0), once="step-0")
        assert not await events.append("job", event(0), once="step-0")
        assert await events.append("other", event(0), once="step-0")
        assert await events.append("job", event(1), once="step-1")
        assert numbers((await events.read("job")).data) == [0, 1]

    with_events(test)


def test_two_that_say_the_same_at_once_say_it_once() -> None:
    async def test(events: Events, redis: fakeredis.FakeAsyncRedis) -> None:
        fresh = await asyncio.gather(
            *(events.append("job", event(0), once="step-0") for _ in range(8))
        )
        assert sum(fresh) == 1
        assert numbers((await events.read("job")).data) == [0]

    with_events(test)


def test_a_stale_replica_says_nothing() -> None:
    async def test(events: Events, redis: fakeredis.FakeAsyncRedis) -> None:
        await redis.set(fence_key("job"), str(Fence(2, "b")))
        with pytest.raises(LostLeaseError):
            await events.append("job", event(0), fence=Fence(1, "a"))
        assert await events.append("job", event(1), fence=Fence(2, "b"))
        assert numbers((await events.read("job")).data) == [1]

    with_events(test)


def test_waiting_gives_what_is_there_for_each_job() -> None:
    async def test(events: Events, redis: fakeredis.FakeAsyncRedis) -> None:
        for number in range(3):
            await events.append("a", event(number))
        first = (await events.read("a")).data[0].id
        await events.append("b", event(7))
        found = await events.wait({"a": first, "b": START, "c": START}, 0.01)
        assert {job: numbers(came) for job, came in found.items()} == {"a": [1, 2], "b": [7]}
        assert await events.wait({"c": START}, 0.01) == {}
        assert await events.wait({}) == {}

    with_events(test)


def test_a_store_that_is_gone_is_a_transient_error() -> None:
    async def main() -> None:
        server = fakeredis.FakeServer()
        events = Events(fakeredis.FakeAsyncRedis(server=server))
        await events.append("job", event(0))
        server.connected = False
        for attempt in (events.append("job", event(1)), events.read("job")):
            with pytest.raises(TransientError):
                await attempt

    asyncio.run(main())


@pytest.mark.parametrize(
    "cursor", ["", "5", "a-b", "1-2-3", "-1-0", "(1-0", "1-0\n", "$", "9" * 50]
)
def test_a_cursor_is_an_events_id(cursor: str) -> None:
    with pytest.raises(UserError, match="is no event's id"):
        check_cursor(cursor)


def test_no_cursor_is_the_start() -> None:
    assert check_cursor(None) == START
    assert check_cursor("1700000000000-3") == "1700000000000-3"
