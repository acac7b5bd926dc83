"""One reader for all event streams of a replica.

However many watch, and whatever they watch, one connection waits for what is new and hands it to
each of them. A stream first joins, then reads what is there already, and drops what it gets twice:
so it misses nothing between the two. One that is too slow to take what it is given reads again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from controller.service.events import START, Events, JobEvent
from rlhfless.errors import CapacityError, TransientError

BLOCK_S = 0.25
"""The longest that a newcomer's job is not among those that the reader waits for."""
MOST_WAITING = 1000
"""Events kept for one stream that does not take them."""
RETRY_S = 0.5
_log = logging.getLogger(__name__)


class Subscription:
    """One watcher of one job."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.lagging = False
        self._events: deque[JobEvent] = deque()
        self._news = asyncio.Event()

    def put(self, events: list[JobEvent]) -> None:
        if len(self._events) + len(events) > MOST_WAITING:
            self._events.clear()
            self.lagging = True
        else:
            self._events.extend(events)
        self._news.set()

    async def take(self, wait_s: float) -> list[JobEvent]:
        """What came since the last time; empty after ``wait_s``."""
        try:
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            return []
        self._news.clear()
        taken = list(self._events)
        self._events.clear()
        return taken


class Fanout:
    """The reader lives while anybody follows anything."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._watchers: dict[str, set[Subscription]] = {}
        self._cursors: dict[str, str] = {}
        self._reading: asyncio.Task[None] | None = None

    async def _read(self) -> None:
        while True:
            try:
                found = await self._events.wait(dict(self._cursors), BLOCK_S)
            except (TransientError, CapacityError) as error:
                _log.warning("event streams wait: %s", error.detail)
                await asyncio.sleep(RETRY_S)
                continue
            except Exception:  # the boundary of the task: streams that open later depend on it
                _log.exception("event streams met a defect")
                await asyncio.sleep(RETRY_S)
                continue
            for job, events in found.items():
                if job in self._cursors:
                    self._cursors[job] = events[-1].id
                for watcher in self._watchers.get(job, ()):
                    watcher.put(events)

    async def follow(
        self, job: str, after: str = START, *, pause_s: float = 1.0
    ) -> AsyncGenerator[list[JobEvent], None]:
        """What came after a cursor, in order and each once; an empty list when nothing came for
        ``pause_s``. Ends when its reader stops reading. Raises as ``Events`` does."""
        with self._joined(job, await self._events.last(job)) as subscription:
            behind = True
            while True:
                while behind:
                    subscription.lagging = False
                    page = await self._events.read(job, after)
                    if page.data:
                        after = page.data[-1].id
                        yield page.data
                    behind = page.has_more
                taken = [e for e in await subscription.take(pause_s) if _after(e.id, after)]
                behind = subscription.lagging
                if behind:
                    continue  # between what it had and what it has now is a gap
                if taken:
                    after = taken[-1].id
                yield taken

    @contextmanager
    def _joined(self, job: str, last: str) -> Iterator[Subscription]:
        subscription = Subscription(job)
        if job not in self._watchers:
            self._watchers[job] = set()
            self._cursors[job] = last
        self._watchers[job].add(subscription)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="fanout")
        try:
            yield subscription
        finally:
            self._watchers[job].discard(subscription)
            if not self._watchers[job]:
                del self._watchers[job], self._cursors[job]
            if not self._watchers:
                self._reading.cancel()
                self._reading = None


def _after(event: str, cursor: str) -> bool:
    return _place(event) > _place(cursor)


def _place(id_: str) -> tuple[int, int]:
    at, _, number = id_.partition("-")
    return int(at), int(number)
