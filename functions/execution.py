"""One run of a handler: torch blocks, so it runs in a worker thread; its frames cross to the event
loop through a bounded way, so a slow reader slows the handler instead of filling memory.

The thread calls ``run``; the loop reads ``chunks`` and calls ``stop``, ``announce_drain`` and
``abandon``. Frames are encoded in the thread. Every run ends with exactly one terminal frame, made
of the handler's error where it gave none, except when nobody reads any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from functions.context import CallContext, Handler, StopReason
from rlhfless.errors import CapacityError, InternalError, RlhflessError, TransientError
from rlhfless.frames import encode_frame
from rlhfless.messages import TERMINAL, CallInfo, Drain, Frame, Heartbeat, Problem

WAITING_FRAMES = 64
OVERRUN_S = 10.0
"""How long after its deadline a handler may still end by itself before its caller is told."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_log = logging.getLogger(__name__)


class Execution:
    """``run(observe)`` calls ``observe`` in the worker thread with every frame of the handler;
    ``on_end`` is called in the loop when the thread is done, before the terminal frame goes out: a
    caller that has its answer finds the place free."""

    def __init__(
        self,
        handler: Handler,
        request: Any,
        context: CallContext,
        on_end: Callable[[Execution], None],
    ) -> None:
        self.context = context
        self.call: CallInfo = request.call
        self.outcome = "ok"
        self.busy_s = 0.0
        """Seconds up to the handler's newest frame."""
        self._handler = handler
        self._request = request
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._began = time.monotonic()
        self._room = threading.Semaphore(WAITING_FRAMES)
        self._waiting: deque[tuple[bytes, bool]] = deque()
        self._wake = asyncio.Event()
        self._abandoned = False
        self._over = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    # --- in the worker thread -----------------------------------------------------------------

    def run(self, observe: Callable[[Frame], None]) -> None:
        """Never raises: whatever goes wrong becomes the terminal frame."""
        try:
            self._run(observe)
        finally:
            self._tell(self._finish)

    def _run(self, observe: Callable[[Frame], None]) -> None:
        try:
            ended = self._send_all(observe)
        except BaseException as error:  # the task boundary: a handler may fail in any way
            failure = as_error(error)
            if isinstance(failure, InternalError):
                _log.exception("call %s failed", self.call.id)
            self._put(self._problem(failure))
            return
        if not ended and self.context.stop_reason == "abort":
            self.outcome = "aborted"
        elif not ended:
            self._put(self._problem(_no_result(self.context.stop_reason)))

    def _send_all(self, observe: Callable[[Frame], None]) -> bool:
        frames = self._handler(self._request, self.context)
        try:
            for frame in frames:
                if self._abandoned:
                    return False
                observe(frame)
                if isinstance(frame, Problem):
                    self.outcome = str(frame.problem.get("category", "internal"))
                self._put(frame)
                if isinstance(frame, TERMINAL):
                    return True
            return False
        finally:
            if isinstance(frames, Generator):
                frames.close()

    def _problem(self, error: RlhflessError) -> Problem:
        self.outcome = error.category
        return Problem(problem=error.to_problem())

    def _put(self, frame: Frame) -> None:
        if self._abandoned:
            return
        data = encode_frame(frame)
        self.busy_s = self.elapsed_s
        self._room.acquire()
        self._waiting.append((data, isinstance(frame, TERMINAL)))
        self._tell(self._wake.set)

    def _tell(self, news: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(news)

    # --- in the event loop --------------------------------------------------------------------

    def _finish(self) -> None:
        self._over = True
        self._on_end(self)
        self._wake.set()

    def stop(self, reason: StopReason) -> None:
        self.context.stop(reason)

    def abandon(self) -> None:
        """Nobody reads any more: stop the handler, and never let it wait for room again."""
        self.context.stop("abort")
        self._abandoned = True
        self._room.release()  # for the one frame that may be waiting
        self._wake.set()

    def announce_drain(self, reason: str) -> None:
        self.context.stop("drain")
        self._waiting.append((encode_frame(Drain(reason=reason)), False))
        self._wake.set()

    async def chunks(
        self, heartbeat_s: float, report_busy: bool = True
    ) -> AsyncGenerator[bytes, None]:
        """Encoded frames, as many at once as are there; the terminal one ends the last chunk, and
        right before it a ``Heartbeat`` says how long the call worked, if ``report_busy``.

        A ``Heartbeat`` also after every ``heartbeat_s`` of silence. A handler that is not done
        ``OVERRUN_S`` after its deadline is given up: its reader gets a transient problem.
        """
        last_s = self.context.deadline + OVERRUN_S
        while True:
            self._wake.clear()
            chunk, ended = self._take(report_busy)
            if chunk:
                yield chunk
            if ended or self._abandoned:
                return
            if chunk:
                continue
            left_s = last_s - time.monotonic()
            if left_s <= 0:
                self.outcome = "transient"
                error = TransientError("the call did not end at its deadline")
                yield encode_frame(Problem(problem=error.to_problem()))
                return
            try:
                async with asyncio.timeout(min(heartbeat_s, left_s)):
                    await self._wake.wait()
            except TimeoutError:
                yield encode_frame(Heartbeat(busy_s=self.elapsed_s))

    def last_heartbeat(self) -> Heartbeat:
        """What is told of the work before its result."""
        return Heartbeat(busy_s=self.busy_s, load_s=self.context.load_s)

    def _take(self, report_busy: bool) -> tuple[bytes, bool]:
        parts: list[bytes] = []
        while self._waiting:
            data, terminal = self._waiting[0]
            if terminal and not self._over:
                break  # ``_finish`` is about to wake us
            self._waiting.popleft()
            self._room.release()
            if terminal and report_busy:
                parts.append(encode_frame(self.last_heartbeat()))
            parts.append(data)
            if terminal:
                return b"".join(parts), True
        return b"".join(parts), False


def as_error(error: BaseException) -> RlhflessError:
    """The family of whatever a handler raised."""
    if isinstance(error, RlhflessError):
        return error
    if _is_out_of_memory(error):
        return CapacityError(
            f"out of memory: {_short(error)}",
            hint="lower tokens_per_microbatch or max_batch, or give the function more memory",
        )
    if _is_out_of_space(error):
        return CapacityError(
            f"no space left: {_short(error)}",
            hint="free some disk space",
        )
    return InternalError(f"{type(error).__name__}: {_short(error)}")


def _is_out_of_space(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return True
    # Of writers that are no Python, safetensors' for one, only the text says so.
    return os.strerror(errno.ENOSPC) in str(error)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        return True
    if type(error).__name__ == "OutOfMemoryError":  # torch.cuda's, named so torch stays unimported
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "out of memory" in text
    )


def _short(error: BaseException, limit: int = 500) -> str:
    text = str(error).strip() or type(error).__name__
    return text if len(text) <= limit else text[:limit] + " ..."


def _no_result(reason: StopReason | None) -> RlhflessError:
    if reason == "drain":
        return TransientError("the instance was told to stop before the call was done")
    if reason == "deadline":
        return TransientError("the call reached its deadline before it was done")
    return InternalError("the function ended without a result")
