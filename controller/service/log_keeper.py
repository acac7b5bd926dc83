"""Keeps a job's log while it runs: lines of the controller about it, and of its instances.

Lines are bounded in number a second, so that a reward that prints for every sample cannot drown the
job store; how many were left out is said instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextvars import ContextVar

from controller.fencing import Fence, LostLeaseError
from controller.platforms.local_logs import LogSlice
from controller.service.log_files import LogFiles, tidy
from controller.service.logs import Line, Logs
from rlhfless.errors import CapacityError, TransientError

CONTROLLER = "controller"
LOGGER = "controller"
"""The logger whose lines, and those of all below it, are about a job if a job's task says them."""
TURN_S = 1.0
RATE = 100.0
"""Lines a second in the long run ..."""
BURST = 1000
"""... and at once; also lines that wait for a job store that does not answer."""
AT_ONCE = 500

_job: ContextVar[str | None] = ContextVar("job", default=None)
_log = logging.getLogger(__name__)


class Bucket:
    """How many lines may be told by now."""

    def __init__(self, rate: float, burst: int, now_s: float) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._room = float(burst)
        self._at_s = now_s

    def take(self, wanted: int, now_s: float) -> int:
        self._room = min(self._burst, self._room + self._rate * (now_s - self._at_s))
        self._at_s = now_s
        taken = min(wanted, int(self._room))
        self._room -= taken
        return taken


class _Handler(logging.Handler):
    """Notes what is said by tasks of one job, in whatever thread."""

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job
        self.said: deque[Line] = deque(maxlen=2 * BURST)

    def emit(self, record: logging.LogRecord) -> None:
        if _job.get() == self._job:
            for text in record.getMessage().splitlines():
                self.said.append(Line(CONTROLLER, f"{record.levelname.lower()}: {text}"))

    def take(self) -> list[Line]:
        return [self.said.popleft() for _ in range(len(self.said))]


class _Keeper:
    def __init__(
        self, logs: Logs, job: str, fence: Fence, redact: Callable[[str], str], now_s: float
    ) -> None:
        self._logs = logs
        self._job = job
        self._fence = fence
        self._redact = redact
        self._run = uuid.uuid4().hex
        self._bucket = Bucket(RATE, BURST, now_s)
        self._waiting: deque[Line] = deque()
        self._written = 0
        self._lines_left_out = 0
        self._bytes_left_out = 0

    def add(self, lines: Sequence[Line], left_out_bytes: int, now_s: float) -> None:
        room = max(0, BURST - len(self._waiting))
        taken = self._bucket.take(min(len(lines), room), now_s)
        self._lines_left_out += len(lines) - taken
        self._bytes_left_out += left_out_bytes
        # Of a burst the end tells most.
        for line in lines[len(lines) - taken :]:
            self._waiting.append(Line(line.source, tidy(line.text, self._redact)))
        if room and (taken or not lines):
            self._say_left_out()

    async def write(self) -> None:
        while self._waiting:
            lines = list(self._waiting)[:AT_ONCE]
            await self._logs.append(
                self._job, lines, run=self._run, before=self._written, fence=self._fence
            )
            self._written += len(lines)
            for _ in lines:
                self._waiting.popleft()

    def _say_left_out(self) -> None:
        """In one line, when the flood is over or some of it was told."""
        what = []
        if self._lines_left_out:
            what.append(f"{self._lines_left_out} lines")
        if self._bytes_left_out:
            what.append(f"{self._bytes_left_out} bytes")
        if what:
            text = f"{' and '.join(what)} were left out: they came too fast"
            self._waiting.append(Line(CONTROLLER, text))
        self._lines_left_out = self._bytes_left_out = 0


@contextlib.asynccontextmanager
async def tailing(
    logs: Logs,
    job: str,
    fence: Fence,
    *,
    slices: Callable[[], Sequence[LogSlice]] = lambda: (),
    drop: Callable[[Sequence[LogSlice]], None] = lambda _: None,
    redact: Callable[[str], str] = lambda text: text,
) -> AsyncGenerator[None]:
    """Keeps the job's log while the body runs, and what is left to tell at its end.

    ``slices``: where its instances write (``LocalPlatform.log_slices``); ``drop`` is told which of
    them are read to their end. ``redact`` takes secrets out of a line. The body's task, and the
    tasks it starts, speak for the job. While Redis does not answer, lines wait, a bounded number;
    those it refuses at the end are lost.
    """
    loop = asyncio.get_running_loop()
    handler = _Handler(job)
    keeper = _Keeper(logs, job, fence, redact, loop.time())
    files = LogFiles()

    async def turn() -> None:
        found, left_out, done = await asyncio.to_thread(files.read, tuple(slices()))
        drop(done)
        keeper.add([*handler.take(), *found], left_out, loop.time())
        try:
            await keeper.write()
        except LostLeaseError:
            return  # whoever keeps the lease ends the run
        except (TransientError, CapacityError) as error:
            _log.warning("the log of job %s cannot be kept: %s", job, error.detail)

    over = asyncio.Event()

    async def turns() -> None:
        # Not cancelled: what a turn has read would be lost with it.
        while not over.is_set():
            await turn()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TURN_S):
                    await over.wait()

    logging.getLogger(LOGGER).addHandler(handler)
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(turns(), name="keep-log")
        token = _job.set(job)
        try:
            yield
        finally:
            _job.reset(token)
            over.set()
            await asyncio.wait({keeping})
            logging.getLogger(LOGGER).removeHandler(handler)
            await turn()
