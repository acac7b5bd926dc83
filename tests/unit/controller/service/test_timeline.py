"""The timeline that is kept, against the ledger it was made from."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import fakeredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import WatchError

from controller.fencing import Fence, LostLeaseError, fence_key
from controller.ledger import PHASES, Ledger, Phase
from controller.service import timeline_log
from controller.service.timeline_log import SpanWriter, recording
from controller.service.timeline_reader import LOST_AFTER_S, Timelines
from rlhfless import rest
from rlhfless.errors import TransientError, UserError
from rlhfless.messages import FUNCTION_NAMES

FENCE = Fence(1, "a")
CLOCK_S = 1_700_000_000.25


class LosingAnswers(fakeredis.FakeAsyncRedis):
    """Does what a transaction says and then loses the connection, which looks like a conflict."""

    lose = 0

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Any:
        pipe = super().pipeline(transaction, shard_hint)
        begin = pipe.execute

        async def execute(raise_on_error: bool = True) -> Any:
            found = await begin(raise_on_error)
            if self.lose:
                self.lose -= 1
                raise WatchError
            return found

        pipe.execute = execute  # type: ignore[method-assign]
        return pipe


class World:
    def __init__(self) -> None:
        self.server = fakeredis.FakeServer()
        self.redis = LosingAnswers(server=self.server, retry=Retry(NoBackoff(), 0))
        self.now_s = 0.0
        self.timelines = Timelines(self.redis, lambda: self.now_s + CLOCK_S)

    async def grant(self, fence: Fence) -> None:
        await self.redis.set(fence_key("job"), str(fence))

    def writer(self, ledger: Ledger, fence: Fence = FENCE) -> SpanWriter:
        return SpanWriter(self.redis, "job", fence, ledger, CLOCK_S)

    async def spans(self, limit: int = 100, after: str | None = None) -> list[rest.Span]:
        found: list[rest.Span] = []
        while True:
            page = await self.timelines.page("job", after, limit)
            found += page.data
            assert len(page.data) <= limit
            if not page.has_more:
                return found
            after = page.data[-1].id


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await world.grant(FENCE)
        await test(world)
        await world.redis.aclose()

    asyncio.run(main())


def test_spans_are_kept_as_they_end() -> None:
    async def test(world: World) -> None:
        ledger = Ledger()
        writer = world.writer(ledger)
        ledger.started("r1", "rollout", 1.0)
        await writer.save(2.0)
        (cold,) = await world.spans()
        assert (cold.id, cold.instance, cold.function, cold.phase) == (
            "open-0-0",
            "r1",
            "rollout",
            "cold",
        )
        assert (cold.start_at, cold.end_at) == (CLOCK_S + 1, None)
        ledger.phase("r1", "busy", 3.0)
        await writer.save(4.0)
        cold, busy = await world.spans(after=cold.id)
        assert (cold.id, cold.phase, cold.end_at) == ("0-0", "cold", CLOCK_S + 3)
        assert (busy.id, busy.phase, busy.end_at) == ("open-1-0", "busy", None)
        assert await world.spans(after=busy.id) == []
        ledger.stopped("r1", 5.0)
        await writer.save(6.0, last=True)
        assert [(s.phase, s.end_at) for s in await world.spans(after=busy.id)] == [
            ("busy", CLOCK_S + 5)
        ]
        assert [s.id for s in await world.spans()] == ["0-0", "1-0"]

    run(test)


def test_what_a_dead_replica_left_open_ended_when_it_was_last_seen() -> None:
    async def test(world: World) -> None:
        ledger = Ledger()
        for name in ("r1", "r2", "r3"):
            ledger.started(name, "rollout", 0.0)
        await world.writer(ledger).save(4.0)
        assert {s.end_at for s in await world.spans()} == {None}
        world.now_s = 4.0 + LOST_AFTER_S + 1
        lost = await world.spans(limit=2)
        assert [(s.id, s.end_at) for s in lost] == [(f"0-{i}", CLOCK_S + 4) for i in range(3)]
        # The next run keeps them, under the ids they were shown by.
        await world.grant(Fence(2, "b"))
        new = Ledger()
        new.started("r1", "rollout", 20.0)
        world.now_s = 21.0
        await world.writer(new, Fence(2, "b")).save(21.0)
        spans = await world.spans(limit=2)
        assert spans[:3] == lost
        assert [(s.id, s.start_at, s.end_at) for s in spans[3:]] == [
            ("open-1-0", CLOCK_S + 20, None)
        ]
        assert await world.spans(after=lost[1].id) == spans[2:]

    run(test)


def test_what_ends_while_it_is_written_is_not_written_twice() -> None:
    """By a replica that dies before it writes again."""

    async def test(world: World) -> None:
        ledger = Ledger()
        ledger.started("r1", "rollout", 0.0)
        pipeline = world.redis.pipeline

        def meanwhile(*arguments: Any, **options: Any) -> Any:
            ledger.phase("r1", "idle", 5.0)
            return pipeline(*arguments, **options)

        world.redis.pipeline = meanwhile  # type: ignore[method-assign]
        await world.writer(ledger).save(4.0)
        world.redis.pipeline = pipeline  # type: ignore[method-assign]
        await world.grant(Fence(2, "b"))
        await world.writer(Ledger(), Fence(2, "b")).save(21.0)
        assert [(s.phase, s.start_at, s.end_at) for s in await world.spans()] == [
            ("cold", CLOCK_S, CLOCK_S + 4)
        ]

    run(test)


def test_a_stale_replica_keeps_nothing() -> None:
    async def test(world: World) -> None:
        ledger = Ledger()
        writer = world.writer(ledger)
        await writer.save(0.0)
        await world.grant(Fence(2, "b"))
        ledger.started("r1", "rollout", 0.0)
        with pytest.raises(LostLeaseError):
            await writer.save(1.0)
        async with recording(world.redis, "job", FENCE, ledger):
            await asyncio.sleep(0)
        assert await world.spans() == []

    run(test)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(0, 3), st.sampled_from(FUNCTION_NAMES)),
        st.tuples(st.just("phase"), st.integers(0, 3), st.sampled_from(PHASES)),
        st.tuples(st.just("stop"), st.integers(0, 3), st.none()),
        st.tuples(st.just("save"), st.none(), st.none()),
        st.tuples(st.just("answers lost"), st.integers(1, 3), st.none()),
        st.tuples(st.just("question lost"), st.none(), st.none()),
        st.tuples(st.just("wait"), st.integers(1, 50), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(actions, st.integers(1, 5), st.integers(1, 7))
def test_the_spans_add_up_to_the_ledger(steps: list[Any], chunk: int, limit: int) -> None:
    async def test(world: World) -> None:
        ledger = Ledger()
        writer = world.writer(ledger)
        running: set[str] = set()
        now_s = 0.0
        for kind, which, what in [*steps, ("last", None, None), ("last", None, None)]:
            name = f"i{which}"
            if kind == "start" and name not in running:
                ledger.started(name, what, now_s)
                running.add(name)
            elif kind == "phase" and name in running:
                ledger.phase(name, what, now_s)
            elif kind == "stop" and name in running:
                ledger.stopped(name, now_s)
                running.remove(name)
            elif kind == "wait":
                now_s += which / 10
            elif kind in ("save", "last"):
                await writer.save(now_s, last=kind == "last")
            elif kind == "answers lost":
                world.redis.lose = which
                await writer.save(now_s)
            elif kind == "question lost":
                world.server.connected = False
                with pytest.raises(TransientError):
                    await writer.save(now_s)
                world.server.connected = True
            world.now_s = now_s
        spans = await world.spans(limit)
        assert len({s.id for s in spans}) == len(spans)
        seconds: dict[tuple[str, Phase], float] = defaultdict(float)
        for span in spans:
            assert span.end_at is not None
            seconds[span.function, span.phase] += span.end_at - span.start_at
        usage = ledger.usage(now_s)
        expected = {
            (function, phase): getattr(usage[function], f"{phase}_s")
            for function in usage
            for phase in PHASES
            if getattr(usage[function], f"{phase}_s") > 0
        }
        assert seconds == pytest.approx(expected, abs=1e-3)

    before, timeline_log.CHUNK_SPANS = timeline_log.CHUNK_SPANS, chunk
    try:
        run(test)
    finally:
        timeline_log.CHUNK_SPANS = before


def test_a_lost_answer_doubles_nothing() -> None:
    async def main() -> None:
        redis = LosingAnswers()
        await redis.set(fence_key("job"), str(FENCE))
        ledger = Ledger()
        writer = SpanWriter(redis, "job", FENCE, ledger, CLOCK_S)
        ledger.started("r1", "rollout", 0.0)
        ledger.phase("r1", "busy", 1.0)
        redis.lose = 2
        await writer.save(2.0)
        redis.lose = 1
        await writer.save(3.0, last=True)
        page = await Timelines(redis).page("job", None, 100)
        assert [(s.phase, s.end_at) for s in page.data] == [
            ("cold", CLOCK_S + 1),
            ("busy", CLOCK_S + 3),
        ]
        await redis.aclose()

    asyncio.run(main())


def test_old_chunks_go_and_places_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_log, "KEEP_CHUNKS", 3)

    async def test(world: World) -> None:
        ledger = Ledger()
        writer = world.writer(ledger)
        ledger.started("r1", "rollout", 0.0)
        for second in range(1, 11):
            ledger.phase("r1", "busy" if second % 2 else "idle", float(second))
            await writer.save(second)
        await writer.save(10.0, last=True)
        assert [s.id for s in await world.spans(limit=1)] == ["7-0", "8-0", "9-0"]
        assert [s.id for s in await world.spans(after="8-0")] == ["9-0"]
        assert await world.spans(after="400-0") == []

    run(test)


def test_a_run_is_recorded_from_its_start_to_its_end() -> None:
    async def test(world: World) -> None:
        ledger = Ledger()
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        with pytest.raises(ExceptionGroup):
            async with recording(world.redis, "job", FENCE, ledger, now=lambda: now_s + CLOCK_S):
                ledger.started("r1", "training", loop.time())
                await asyncio.sleep(0.01)
                raise RuntimeError("the job failed")
        (span,) = await world.spans()
        assert span.end_at is not None
        assert span.end_at - span.start_at == pytest.approx(
            ledger.usage(loop.time())["training"].held_s, abs=1.0
        )

    run(test)


def test_a_run_outlives_a_redis_that_does_not_answer() -> None:
    async def test(world: World) -> None:
        ledger = Ledger()
        async with recording(world.redis, "job", FENCE, ledger):
            ledger.started("r1", "training", asyncio.get_running_loop().time())
            world.server.connected = False
        world.server.connected = True
        assert await world.spans() == []

    run(test)


@pytest.mark.parametrize("after", ["", "x", "1", "-1-0", "open-", "1-0 ", "1" * 40 + "-0"])
def test_a_cursor_that_cannot_be(after: str) -> None:
    async def test(world: World) -> None:
        with pytest.raises(UserError, match="no span's id"):
            await world.timelines.page("job", after, 10)

    run(test)
