"""A job's timeline: when each of its instances was cold, busy or idle, over all its runs.

The ledger of a run books spans in seconds of the run's own clock and forgets them when the process
ends. They are kept here in Unix seconds, by one reading of both clocks a run.

    rlhfless:{job}:spans       list    chunks of ended spans (JSON, ``Chunk``), oldest first
    rlhfless:{job}:spans:head  string  where the list ends, what spans go on (JSON, ``Head``)

Both change in one transaction, which checks the fence and goes on where the head says: a span is
kept once, however often its writing is repeated or Redis forgets its last second. A replica that
dies leaves spans open; they ended when they were last seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

import msgspec
from redis.asyncio import Redis

from controller.fencing import Fence, LostLeaseError, check_fence, fence_key
from controller.ledger import Ledger, Phase, Span
from controller.redis_calls import answer
from rlhfless.errors import CapacityError, TransientError
from rlhfless.messages import FunctionName

SAVE_EVERY_S = 2.0
CHUNK_SPANS = 1000
KEEP_CHUNKS = 20_000
"""Half a day of a job that is never still, about 30 MB; the oldest go first."""
DIGITS = 5
"""Of a time, after the point."""

_log = logging.getLogger(__name__)


class KeptSpan(msgspec.Struct, frozen=True, array_like=True):
    """``[start, end)`` in Unix seconds."""

    instance: str
    function: FunctionName
    phase: Phase
    start: float
    end: float


class Chunk(msgspec.Struct, frozen=True):
    """``number`` grows by one from chunk to chunk of a job, so that a place in the list has a name
    that stays when old chunks go."""

    number: int
    spans: list[KeptSpan]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Where writing stands: ``run`` has written its first ``written`` spans, and the next chunk has
    the number ``next``. ``open`` are spans that go on, or did at ``seen_at``, their end; when the
    run has ``ended`` there are none."""

    run: str = ""
    written: int = 0
    ended: bool = False
    next: int = 0
    seen_at: float = 0.0
    open: list[KeptSpan] = []


_decode_chunk = msgspec.json.Decoder(Chunk).decode
_decode_head = msgspec.json.Decoder(Head).decode
_encode = msgspec.json.encode


def spans_key(job: str) -> str:
    return f"rlhfless:{{{job}}}:spans"


def head_key(job: str) -> str:
    return f"rlhfless:{{{job}}}:spans:head"


async def read_head(redis: Any, job: str) -> Head:
    """``redis``: a client, or a pipeline that watches."""
    raw = await redis.get(head_key(job))
    return Head() if raw is None else _decode_head(raw)


async def read_chunks(redis: Redis, job: str, start: int, count: int) -> list[Chunk]:
    """Up to ``count`` chunks of number ``start`` and above, those that are still kept."""
    first = await answer(redis.lindex(spans_key(job), 0))
    if first is None:
        return []
    offset = max(0, start - _decode_chunk(first).number)
    raw = await answer(redis.lrange(spans_key(job), offset, offset + count - 1))
    return [chunk for chunk in map(_decode_chunk, raw) if chunk.number >= start]


class SpanWriter:
    """Writes the spans of one run. ``clock_s``: what to add to loop seconds for Unix seconds."""

    def __init__(
        self, redis: Redis, job: str, fence: Fence, ledger: Ledger, clock_s: float
    ) -> None:
        self._redis = redis
        self._job = job
        self._fence = fence
        self._ledger = ledger
        self._clock_s = clock_s
        self._run = uuid.uuid4().hex

    async def save(self, now_s: float, *, last: bool = False) -> None:
        """Write what has ended since the last time, and what goes on at ``now_s`` (loop seconds).
        At the ``last`` time all spans end. Repeating it is harmless. Raises ``LostLeaseError``,
        ``TransientError``, ``CapacityError``."""
        # The ledger goes on while Redis is asked: what ends meanwhile must not be written as ended
        # beside what it was before.
        ended = self._ledger.spans
        count = len(ended)
        running = self._ledger.all_spans(now_s)[count:]

        async def plan(pipe: Any) -> None:
            await check_fence(pipe, self._job, self._fence)
            head = await read_head(pipe, self._job)
            if head.run == self._run and head.ended:
                return  # only the answer was lost
            if head.run == self._run:
                fresh = self._kept(ended[head.written : count])
            else:  # the first time: what the run before left open has ended
                fresh = [*head.open, *self._kept(ended[:count])]
            if last:
                fresh += self._kept(span for span in running if span.end_s > span.start_s)
            chunks = [
                Chunk(head.next + number, fresh[start : start + CHUNK_SPANS])
                for number, start in enumerate(range(0, len(fresh), CHUNK_SPANS))
            ]
            after = Head(
                run=self._run,
                written=count,
                ended=last,
                next=head.next + len(chunks),
                seen_at=now_s + self._clock_s,
                open=[] if last else self._kept(running),
            )
            pipe.multi()
            if chunks:
                pipe.rpush(spans_key(self._job), *map(_encode, chunks))
                pipe.ltrim(spans_key(self._job), -KEEP_CHUNKS, -1)
            pipe.set(head_key(self._job), _encode(after))

        keys = (head_key(self._job), fence_key(self._job))
        await answer(self._redis.transaction(plan, *keys))

    def _kept(self, spans: Iterable[Span]) -> list[KeptSpan]:
        return [
            KeptSpan(
                span.instance,
                span.function,
                span.phase,
                round(span.start_s + self._clock_s, DIGITS),
                round(span.end_s + self._clock_s, DIGITS),
            )
            for span in spans
        ]


@contextlib.asynccontextmanager
async def recording(
    redis: Redis, job: str, fence: Fence, ledger: Ledger, now: Callable[[], float] = time.time
) -> AsyncGenerator[None]:
    """Keeps the ledger's spans while the body runs, every ``SAVE_EVERY_S``, and all of them at its
    end, however it comes: what still runs then is booked up to then. While Redis does not answer
    they wait; what it refuses at the end is lost but for what was seen to go on."""
    loop = asyncio.get_running_loop()
    writer = SpanWriter(redis, job, fence, ledger, now() - loop.time())

    async def save(*, last: bool = False) -> None:
        try:
            await writer.save(loop.time(), last=last)
        except LostLeaseError:
            return  # whoever keeps the lease ends the run
        except (TransientError, CapacityError) as error:
            _log.warning("the timeline of job %s cannot be kept: %s", job, error.detail)

    async def save_often() -> None:
        while True:
            await save()
            await asyncio.sleep(SAVE_EVERY_S)

    async with asyncio.TaskGroup() as group:
        saving = group.create_task(save_often(), name="save-timeline")
        try:
            yield
        finally:
            # A save under way would bring back, after the last one, what that has ended.
            saving.cancel()
            await asyncio.wait({saving})
            await save(last=True)
