"""A job's log: what the controller and the function instances said, the newest lines.

    rlhfless:{job}:logs     stream  lines (JSON, ``[source, text]``), bounded
    rlhfless:{job}:logs:at  string  which run has written how many

A line's id is its place in the stream, by Redis's own clock, and the cursor of every reader, as of
events. The count is kept in the transaction that adds the lines, so a repeated write doubles none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis

from controller.fencing import Fence, check_fence, fence_key
from controller.redis_calls import answer
from controller.service.events import START
from rlhfless import rest

KEEP = 10_000
"""About so many lines of a job are kept, the newest."""


class Line(msgspec.Struct, frozen=True, array_like=True):
    """``source``: ``controller`` or the instance that said it."""

    source: str
    text: str


class _At(msgspec.Struct, frozen=True, array_like=True):
    run: str = ""
    lines: int = 0


_decode = msgspec.json.Decoder(Line).decode
_decode_at = msgspec.json.Decoder(_At).decode


class Logs:
    """Of all jobs. Raises as ``controller.redis_calls.answer`` does."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def append(
        self, job: str, lines: Sequence[Line], *, run: str, before: int, fence: Fence
    ) -> None:
        """Add lines of a run, which has said ``before`` lines before them. Repeating it is
        harmless. Raises ``LostLeaseError``."""
        at_key = f"{_stream(job)}:at"

        async def plan(pipe: Any) -> None:
            await check_fence(pipe, job, fence)
            raw = await pipe.get(at_key)
            at = _At() if raw is None else _decode_at(raw)
            fresh = lines[max(0, at.lines - before) if at.run == run else 0 :]
            pipe.multi()
            for line in fresh:
                fields = {"line": msgspec.json.encode(line)}
                pipe.xadd(_stream(job), fields, maxlen=KEEP, approximate=True)
            pipe.set(at_key, msgspec.json.encode(_At(run, before + len(lines))))

        await answer(self._redis.transaction(plan, at_key, fence_key(job)))

    async def read(self, job: str, after: str = START, limit: int = 100) -> rest.Page[rest.LogLine]:
        """At most ``limit`` lines after a cursor, oldest first."""
        found = await answer(self._redis.xrange(_stream(job), f"({after}", "+", limit + 1))
        lines = [_document(id_.decode(), _decode(fields[b"line"])) for id_, fields in found]
        return rest.Page(data=lines[:limit], has_more=len(lines) > limit)

    async def last_at(self, job: str) -> float:
        """Unix time of the newest line; 0.0 if there is none."""
        found = await answer(self._redis.xrevrange(_stream(job), count=1))
        return _at_s(found[0][0].decode()) if found else 0.0


def _stream(job: str) -> str:
    return f"rlhfless:{{{job}}}:logs"


def _at_s(id_: str) -> float:
    return int(id_.partition("-")[0]) / 1000


def _document(id_: str, line: Line) -> rest.LogLine:
    return rest.LogLine(id=id_, created_at=_at_s(id_), source=line.source, text=line.text)
