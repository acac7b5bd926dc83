"""The faults benchmark finds what it looks for; the faults themselves are real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from benchmarks.faults.checks import books, state, steps, stream
from benchmarks.faults.links import Link
from benchmarks.faults.lives import Life
from rlhfless import rest


def with_link(test: Callable[[Link], Awaitable[None]]) -> None:
    """A link before a server that says everything twice."""

    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data + data)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(twice, "127.0.0.1", 0)
        async with server, Link([1, server.sockets[0].getsockname()[1]]) as link:
            await test(link)

    asyncio.run(main())


@asynccontextmanager
async def connected(
    link: Link,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def test_a_link_passes_on_what_is_said() -> None:
    async def test(link: Link) -> None:
        async with connected(link) as (reader, writer):
            writer.write(b"ab")
            assert await reader.readexactly(4) == b"abab"

    with_link(test)


def test_a_link_that_refuses_breaks_what_is_open_and_what_comes() -> None:
    async def test(link: Link) -> None:
        async with connected(link) as (reader, writer):
            writer.write(b"ab")
            await reader.readexactly(4)
            link.set("refusing")
            assert await gone(reader)
        async with connected(link) as (reader, _):
            assert await gone(reader)
        link.set("up")
        async with connected(link) as (reader, writer):
            writer.write(b"c")
            assert await reader.readexactly(2) == b"cc"

    with_link(test)


async def gone(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


def test_what_is_sent_on_a_silent_link_comes_when_it_is_up_again() -> None:
    async def test(link: Link) -> None:
        async with connected(link) as (reader, writer):
            writer.write(b"a")
            await reader.readexactly(2)
            link.set("silent")
            writer.write(b"b")
            read = asyncio.create_task(reader.readexactly(2))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not read.done()
            link.set("up")
            assert await read == b"bb"

    with_link(test)


def job(state: rest.State, steps_done: int = 0) -> rest.Job:
    return rest.Job(
        id="job-1",
        name="n",
        created_at=0.0,
        updated_at=0.0,
        state=state,
        states={},
        progress=rest.Progress(steps_done=steps_done),
        spec={},
    )


def event(id_: str, told: rest.State) -> rest.Event:
    return rest.Event(
        id=id_, created_at=0.0, type="state", level="info", message=told, data={"state": told}
    )


def life(*seen: str, asked_to_cancel: bool = False) -> Life:
    return Life("n", "t", 0, "left alone", "job-1", list(seen), asked_to_cancel=asked_to_cancel)


EVENTS = [event("1-0", "queued"), event("2-0", "running"), event("3-0", "succeeded")]


def test_a_stream_tells_each_event_once() -> None:
    done = job("succeeded")
    assert not list(stream(life("1-0", "2-0", "3-0"), done, EVENTS))
    for seen in (("1-0", "3-0"), ("1-0", "2-0", "2-0", "3-0"), ("2-0", "1-0", "3-0")):
        assert len(list(stream(life(*seen), done, EVENTS))) == 1


def test_states_follow_one_another() -> None:
    events = [*EVENTS[:2], event("3-0", "running"), EVENTS[2]]
    (wrong,) = stream(life(*(e.id for e in events)), job("succeeded"), events)
    assert "running after running" in wrong


@pytest.mark.parametrize(
    ("told", "metrics", "done", "fine"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 4, True),
        ([1, 2, 2, 3, 4], [1, 2, 3, 4], 4, False),
        ([1, 2, 4], [1, 2, 4], 3, False),
        ([1, 2, 3], [1, 2, 3], 3, False),
        ([1, 2, 3, 4], [1, 2, 3, 4], 5, False),
    ],
)
def test_steps_are_done_once(told: list[int], metrics: list[int], done: int, fine: bool) -> None:
    assert (not list(steps(job("succeeded", done), told, metrics))) == fine


def test_only_who_asked_for_it_is_cancelled() -> None:
    assert list(state(life(), job("cancelled")))
    assert not list(state(life(asked_to_cancel=True), job("cancelled")))
    assert list(state(life(asked_to_cancel=True), job("failed")))


def span(start: float, end: float | None) -> rest.Span:
    return rest.Span(
        id="0", instance="r1", function="rollout", phase="busy", start_at=start, end_at=end
    )


def test_books_add_up() -> None:
    def found(of: rest.Spent, total: rest.Spent, *spans: rest.Span) -> list[str]:
        steps = [rest.StepSpent(id="1", step=1, functions={"rollout": of})]
        usage = rest.Usage(
            total=total, functions={"rollout": of}, wall_s=1.0, data=steps, has_more=False
        )
        return list(books(usage, spans))

    spent = rest.Spent(held_s=3.0, busy_s=1.0, idle_s=1.5, cold_s=0.5)
    assert not found(spent, spent, span(0, 1), span(1, 3))
    assert found(spent.model_copy(update={"held_s": 3.1}), spent)
    assert found(spent, spent.model_copy(update={"idle_s": 2.5, "held_s": 4.0}))
    assert found(spent, spent, span(0, 2), span(1, 3))
    assert found(spent, spent, span(0, None))
