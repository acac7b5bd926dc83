"""Pages of a job's timeline, oldest first, the spans that still go on at the end.

A span's id names its place, so a reader goes on after the last one it has seen. Those that went on
then come again, under new ids, once one of them has ended; until then there is nothing new.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple

from redis.asyncio import Redis

from controller.redis_calls import answer
from controller.service.timeline_log import KeptSpan, read_chunks, read_head
from rlhfless import rest
from rlhfless.errors import UserError

LOST_AFTER_S = 10.0
"""Spans not seen for so long go on no more: their replica is gone."""
CHUNKS_AT_ONCE = 200
_CURSOR = re.compile(r"(open-)?([0-9]{1,12})-([0-9]{1,12})")


class Timelines:
    """The timelines of all jobs. Raises as ``controller.redis_calls.answer`` does."""

    def __init__(self, redis: Redis, now: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._now = now

    async def page(self, job: str, after: str | None, limit: int) -> rest.Page[rest.Span]:
        """Raises ``UserError`` for an ``after`` that is no span's id."""
        place = _place(after)
        # The head first: what is written after it is left for the next page.
        head = await answer(read_head(self._redis, job))
        found: list[rest.Span] = []
        chunk, index = place.chunk, 0 if place.went_on else place.seen
        while len(found) <= limit and chunk < head.next:
            chunks = await read_chunks(self._redis, job, chunk, CHUNKS_AT_ONCE)
            for kept in chunks:
                if kept.number < head.next:
                    found += _documents(kept.spans, kept.number, index)
                index = 0
            chunk = chunks[-1].number + 1 if chunks else head.next
        if len(found) <= limit:
            # Spans of a lost replica have the ids already that they will be kept under.
            going_on = self._now() - head.seen_at <= LOST_AFTER_S
            seen = place.seen if place.chunk == head.next else 0
            found += _documents(head.open, head.next, seen, going_on)
        return rest.Page(data=found[:limit], has_more=len(found) > limit)


class _Place(NamedTuple):
    """Where to go on: in the chunk of a number, of which so many were ``seen``. If they
    ``went_on``, they were open then."""

    chunk: int
    seen: int
    went_on: bool


def _place(after: str | None) -> _Place:
    if after is None:
        return _Place(0, 0, False)
    found = _CURSOR.fullmatch(after)
    if found is None:
        raise UserError(
            f"{after[:80]!r} is no span's id",
            param="after",
            hint="give the id of the last span that you have, or nothing for all of them",
        )
    went_on, chunk, index = found.groups()
    return _Place(int(chunk), int(index) + 1, went_on is not None)


def _documents(
    spans: list[KeptSpan], chunk: int, start: int, going_on: bool = False
) -> list[rest.Span]:
    prefix = "open-" if going_on else ""
    return [
        rest.Span(
            id=f"{prefix}{chunk}-{place}",
            instance=span.instance,
            function=span.function,
            phase=span.phase,
            start_at=span.start,
            end_at=None if going_on else span.end,
        )
        for place, span in enumerate(spans[start:], start)
    ]
