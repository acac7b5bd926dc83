"""A Python reward function, scored by its own worker process.

One worker per function, kept warm; calls of it take turns (more at once need more instances). The
worker is replaced after a time-out, a crash, an exhausted memory limit, and when its file changed.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from functions.reward.process import (
    SLICE_S,
    CallCancelled,
    CallTimeout,
    Cancelled,
    Worker,
    WorkerDied,
)
from functions.reward.scorer import Samples, fault
from functions.reward.wire import NO_SAMPLE, Failed, Load, Loaded, Reply, Scores, Started, pack
from rlhfless.errors import InternalError, TransientError, UserError
from rlhfless.messages import RewardFunction

START_TIMEOUT_S = 120.0
"""Least time for starting a worker and importing user code, which may load a model."""
_QUOTED_LINES = 5
_STACK_LINE = re.compile(
    r'^  File "(?P<path>.+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE
)
_NOT_USERS = ("<", os.path.dirname(os.path.abspath(__file__)) + os.sep)
_log = logging.getLogger("functions.reward")


class PythonScorer:
    """See ``Scorer``. The worker starts with the first call."""

    def __init__(self, function: RewardFunction, start_timeout_s: float = START_TIMEOUT_S) -> None:
        self._function = function
        self._start_timeout_s = max(start_timeout_s, function.timeout_s)
        self._turn = threading.Lock()
        self._worker: Worker | None = None
        self._path = ""
        self._source: tuple[int, int] | None = None

    def score(self, samples: Samples, cancelled: Cancelled) -> list[float | None]:
        with self._my_turn(cancelled):
            try:
                worker = self._ready(samples, cancelled)
                worker.lines.clear()
                reply = self._call(worker, samples, cancelled)
            except BaseException:  # whatever it was, the next call gets a worker without a past
                self._discard()
                raise
            if isinstance(reply, Scores):
                return reply.values
            assert isinstance(reply, Failed)
            error = self._failed(worker, samples, reply)
            if reply.exhausted:
                self._discard()
            raise error

    def close(self) -> None:
        with self._turn:
            self._discard()

    @contextmanager
    def _my_turn(self, cancelled: Cancelled) -> Iterator[None]:
        while not self._turn.acquire(timeout=SLICE_S):
            if cancelled():
                raise CallCancelled
        try:
            yield
        finally:
            self._turn.release()

    def _ready(self, samples: Samples, cancelled: Cancelled) -> Worker:
        """The warm worker, or a new one with the function loaded."""
        if self._worker is not None and _stat(self._path) == self._source:
            return self._worker
        self._discard()
        function = self._function
        worker = self._worker = Worker(function.name, network=function.network)
        self._start(worker, cancelled)
        try:
            load = pack(Load(target=function.target, memory_bytes=function.memory_bytes))
            reply = worker.exchange(load, self._start_timeout_s, cancelled)
        except CallTimeout:
            where, trace = self._place(worker.current_stack())
            what = f"did not finish importing within {self._start_timeout_s:g} s{where}"
            raise self._error(worker, samples, what, trace=trace) from None
        except WorkerDied as death:
            where, trace = self._place(worker.crash_stack())
            what = f"{death.describe()}{where} while it was imported"
            raise self._error(worker, samples, what, trace=trace) from None
        if isinstance(reply, Failed):
            raise self._failed(worker, samples, reply)
        assert isinstance(reply, Loaded)
        self._path = reply.path
        self._source = _stat(reply.path)
        return worker

    def _start(self, worker: Worker, cancelled: Cancelled) -> None:
        """Until the worker runs; no code of the user's has a part in this."""
        try:
            started = worker.exchange(None, self._start_timeout_s, cancelled)
        except CallTimeout:
            raise TransientError("a reward worker did not start in time") from None
        except WorkerDied:
            raise InternalError(
                f"a reward worker did not start: {' | '.join(worker.lines)}"
            ) from None
        assert isinstance(started, Started)
        worker.pid = started.pid
        if started.exposed is not None:
            _warn_exposed(started.exposed)

    def _call(self, worker: Worker, samples: Samples, cancelled: Cancelled) -> Reply:
        timeout_s = self._function.timeout_s
        try:
            return worker.exchange(samples.packed, timeout_s, cancelled)
        except CallTimeout:
            where, trace = self._place(worker.current_stack())
            what, hint = f"took longer than {timeout_s:g} s{where}", "raise its timeout_s or fix it"
        except WorkerDied as death:
            if death.status is None:
                raise TransientError(f"reward {self._function.name!r} lost its worker") from None
            where, trace = self._place(worker.crash_stack())
            what, hint = f"{death.describe()}{where}", None
        sample = worker.last_sample(len(samples))
        raise self._error(worker, samples, what, sample=sample, hint=hint, trace=trace)

    def _failed(self, worker: Worker, samples: Samples, reply: Failed) -> UserError:
        hint = reply.hint
        if reply.exhausted and self._function.memory_bytes:
            hint = f"its memory limit is {self._function.memory_bytes >> 20} MiB (memory_mb)"
        return self._error(
            worker, samples, reply.what, sample=reply.sample, hint=hint, trace=reply.trace
        )

    def _error(
        self,
        worker: Worker,
        samples: Samples,
        what: str,
        *,
        sample: int = NO_SAMPLE,
        hint: str | None = None,
        trace: str | None = None,
    ) -> UserError:
        """Quote the last lines printed; name the function and the sample."""
        lines = list(worker.lines)[-_QUOTED_LINES:]
        printed = "it last printed: " + " | ".join(lines) if lines else None
        hints = "; ".join(filter(None, [hint, printed])) or None
        return fault(self._function, samples, what, sample=sample, hint=hints, trace=trace or None)

    def _place(self, trace: str) -> tuple[str, str]:
        """Where user code is or crashed, as text to append, and the stacks given."""
        current = trace[max(0, trace.find("Current thread")) :]
        frames = [m for m in _STACK_LINE.finditer(current) if not m["path"].startswith(_NOT_USERS)]
        source = os.path.abspath(self._path) if self._path else ""
        frame = next((m for m in frames if m["path"] == source), frames[0] if frames else None)
        where = f" (at {frame['path']}:{frame['line']} in {frame['name']})" if frame else ""
        return where, trace

    def _discard(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def _stat(path: str) -> tuple[int, int] | None:
    """What changes when a file is edited; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@functools.cache
def _warn_exposed(reason: str) -> None:
    """Once a process and reason."""
    _log.warning("reward code can reach the network: %s", reason)
