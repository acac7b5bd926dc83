"""A job's events: what happened to it, in order, for whoever watches.

A Redis Stream a job. An event's id, ``milliseconds-number`` by Redis's own clock, grows along the
stream and is the cursor of every reader, so that one who was cut off asks for what came after the
last it saw and neither misses an event nor sees one twice.

    rlhfless:{job}:events        stream  the events (JSON)
    rlhfless:{job}:said:{name}   string  there is an event under this name
    rlhfless:{job}:ended         string  the event that ends the job is there; expires

An event given a name (``once``) is appended by the first who says it, whoever repeats it after a
crash. One without is appended once, too, when only the answer of Redis was lost.

Nothing of what a job's driver says comes after the event that ends the job, with which streams end:
a driver learns of a cancellation a moment later, and what it would commit or say in that moment is
refused.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
from redis.asyncio import Redis

from controller.fencing import Fence, check_fence, fence_key
from controller.redis_calls import answer
from rlhfless.errors import ConflictError, UserError

Level = Literal["info", "warning", "error"]

START = "0-0"
"""The cursor before the first event."""
KEEP = 100_000
"""About so many events of a job are kept, the newest."""
MAX_WAIT_S = 1.0
"""Longest single wait for an event; well below the time after which a client gives an answer up."""
REPEATS_WITHIN_S = 600
"""A client repeats a command within this time, or never."""
ENDED_FOR_S = 24 * 3600
"""No driver goes on for so long after its job was ended."""
_CURSOR = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")


class JobEndedError(ConflictError):
    """The job has ended meanwhile; its driver has nothing to add."""

    title = "Job ended"


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """``type`` says what ``data`` holds (``state``, ``step``, ``metrics``, ...)."""

    id: str = ""
    type: str
    message: str
    level: Level = "info"
    data: dict[str, Any] = {}

    @property
    def created_at(self) -> float:
        """Unix seconds, by Redis's clock."""
        return int(self.id.partition("-")[0]) / 1000


class EventPage(msgspec.Struct, frozen=True):
    data: list[JobEvent]
    has_more: bool


_decode = msgspec.json.Decoder(JobEvent).decode


def check_cursor(cursor: str | None) -> str:
    """A cursor as a reader sent it; None is the start. Raises ``UserError``."""
    if cursor is None:
        return START
    if not _CURSOR.fullmatch(cursor):
        raise UserError(
            f"{cursor[:80]!r} is no event's id",
            param="after",
            hint="give the id of the last event that you have, or nothing for all of them",
        )
    return cursor


def add_to(pipe: Any, job: str, event: JobEvent) -> None:
    """Append an event as a part of somebody's transaction."""
    pipe.xadd(_stream(job), {"event": msgspec.json.encode(event)}, maxlen=KEEP, approximate=True)


def end_in(pipe: Any, job: str) -> None:
    """The event that ends the job is appended in the same transaction."""
    pipe.set(ended_key(job), b"", ex=ENDED_FOR_S)


async def check_open(pipe: Any, job: str) -> None:
    """Raises ``JobEndedError`` after the job's end. ``pipe`` is a pipeline that watches
    ``ended_key(job)`` and has not begun its transaction."""
    if await pipe.exists(ended_key(job)):
        raise JobEndedError(f"job {job} has ended")


class Events:
    """The events of all jobs. Raises as ``controller.redis_calls.answer`` does."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def append(
        self, job: str, event: JobEvent, *, once: str | None = None, fence: Fence | None = None
    ) -> bool:
        """Append an event (its ``id`` is given by Redis). False: one was appended under the name
        ``once`` before. With a ``fence``, a driver's, raises ``LostLeaseError`` if it is no longer
        valid, ``JobEndedError`` if the job has ended."""
        name = uuid.uuid4().hex if once is None else once
        said = f"rlhfless:{{{job}}}:said:{name}"
        fresh = True

        async def plan(pipe: Any) -> None:
            nonlocal fresh
            if fence is not None:
                await check_fence(pipe, job, fence)
                await check_open(pipe, job)
            if await pipe.exists(said):
                # A name of our own: an earlier attempt did it, and only its answer was lost.
                fresh = once is None
                return
            pipe.multi()
            pipe.set(said, b"", ex=REPEATS_WITHIN_S if once is None else None)
            add_to(pipe, job, event)

        await answer(self._redis.transaction(plan, said, fence_key(job), ended_key(job)))
        return fresh

    async def read(self, job: str, after: str = START, limit: int = 100) -> EventPage:
        """At most ``limit`` events after a cursor, oldest first."""
        found = await answer(self._redis.xrange(_stream(job), f"({after}", "+", limit + 1))
        events = _events(found)
        return EventPage(events[:limit], len(events) > limit)

    async def wait(
        self, cursors: Mapping[str, str], wait_s: float = MAX_WAIT_S, limit: int = 100
    ) -> dict[str, list[JobEvent]]:
        """What came after each job's cursor, by job: at once if there is anything, else as soon as
        there is; empty after ``wait_s`` (``MAX_WAIT_S`` at most). Occupies a connection."""
        if not cursors:
            return {}
        block_ms = max(1, round(min(wait_s, MAX_WAIT_S) * 1000))
        streams = {_stream(job): cursor for job, cursor in cursors.items()}
        found = await answer(self._redis.xread(cast(Any, streams), count=limit, block=block_ms))
        by_stream = {_stream(job).encode(): job for job in cursors}
        return {by_stream[stream]: _events(entries) for stream, entries in found or ()}

    async def last(self, job: str) -> str:
        """The cursor after everything there is."""
        found = await answer(self._redis.xrevrange(_stream(job), count=1))
        return found[0][0].decode() if found else START


def ended_key(job: str) -> str:
    return f"rlhfless:{{{job}}}:ended"


def _stream(job: str) -> str:
    return f"rlhfless:{{{job}}}:events"


def _events(entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[JobEvent]:
    return [
        msgspec.structs.replace(_decode(fields[b"event"]), id=id_.decode())
        for id_, fields in entries
    ]
