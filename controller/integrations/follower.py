"""One tracker of a job, from the job's side: it gets every step once, whatever happens to it.

Entries wait in order until the tracker has taken them. Where that fails they wait on: a server that
comes back gets what it missed, a process that died is started again, and each time the tracker says
what it has already. Each cause is told once. The job waits for none of this.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from controller.integrations.process import TrackerProcess
from controller.integrations.tracker import Entry, Logged, Status
from controller.integrations.worker import Answer, Begin, Close, Log
from rlhfless.errors import RlhflessError

BACKLOG = 10_000
"""Entries that wait; beyond that the oldest are dropped."""
BEGIN_S, LOG_S = 120.0, 60.0
"""Longest waits for an answer. A library is imported, and a server woken, within the first."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
CLOSE_S = 15.0
"""At the end a tracker has so long to take what waits."""
Warn = Callable[[str], None]


class Follower:
    """``begin`` opens the run; ``start_process`` makes a process that is not started yet."""

    def __init__(
        self,
        name: str,
        begin: Begin,
        make_process: Callable[[], TrackerProcess],
        warn: Warn,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self.name = name
        self._begin = begin
        self._make_process = make_process
        self._warn_of = warn
        self._first_pause_s = self._pause_s = first_pause_s
        self._waiting: deque[Entry] = deque()
        self._news = asyncio.Event()
        self._closing = asyncio.Event()
        self._status: Status | None = None
        self._told: set[str] = set()

    @property
    def behind(self) -> int:
        """Entries that the tracker has not taken yet."""
        return len(self._waiting)

    def add(self, entry: Entry) -> None:
        if len(self._waiting) == BACKLOG:
            self._waiting.popleft()
            self._warn("backlog", f"more than {BACKLOG:,} steps wait; the oldest are dropped")
        self._waiting.append(entry)
        self._news.set()

    def finish(self, status: Status) -> None:
        """``run`` ends when what waits is taken and the run closed."""
        self._status = status
        self._closing.set()
        self._news.set()

    async def run(self) -> None:
        """Until the run is closed. Ends its process however it ends."""
        while True:
            process = self._make_process()
            try:
                await process.start()
                await self._follow(process)
                await process.end(grace_s=CLOSE_S)
                return
            except RlhflessError as error:
                self._warn("process", error.detail)
            finally:
                await process.end()
            await self._pause()

    async def _follow(self, process: TrackerProcess) -> None:
        while (answer := await process.ask(self._begin, BEGIN_S)).error is not None:
            await self._failed(answer)
        assert answer.logged is not None
        self._forget(answer.logged)
        while True:
            while self._waiting:
                entry = self._waiting[0]
                answer = await process.ask(Log(entry), LOG_S)
                if answer.error is not None:
                    await self._failed(answer)
                    continue
                self._pause_s = self._first_pause_s
                if self._waiting and self._waiting[0] is entry:
                    self._waiting.popleft()
            if self._status is not None:
                answer = await process.ask(Close(self._status), CLOSE_S)
                if answer.error is not None:
                    self._warn(answer.kind, answer.error)
                return
            self._news.clear()
            await self._news.wait()

    def _forget(self, logged: Logged) -> None:
        """Leave out what the run has already."""
        self._waiting = deque(entry for entry in self._waiting if not logged.has(entry))

    async def _failed(self, answer: Answer) -> None:
        self._warn(answer.kind, answer.error or "")
        await self._pause()

    async def _pause(self) -> None:
        """Grows from time to time. At the end of the job there is no time to lose."""
        if self._closing.is_set():
            await asyncio.sleep(self._first_pause_s)
            return
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        try:
            async with asyncio.timeout(pause_s):
                await self._closing.wait()
        except TimeoutError:
            return

    def _warn(self, cause: str, text: str) -> None:
        if cause not in self._told:
            self._told.add(cause)
            self._warn_of(f"{self.name}: {text}; the job goes on")
