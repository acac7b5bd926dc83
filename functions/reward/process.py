"""The reward function's side of a user-code worker: start it, talk to it, end it.

    this process ---- control ----> supervisor        (its end kills everything below)
         |                              | fork
         +-------- calls -------------> worker ---> whatever user code starts
         +-------- output, notes, trace (shared, see ``Worker``)

A ``Worker`` serves one thread at a time and is thrown away after any failure but ``Failed``.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable

import functions
from functions.reward.tracked import SHARED_BYTES, last_sample
from functions.reward.wire import Reply, exited_decoder, reply_decoder, unpack_from

SLICE_S = 0.05
TRACE_WAIT_S = 0.25
TRACE_SIGNAL = signal.SIGUSR2
_LINE_BYTES = 2000
_READS = 8
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(functions.__file__)))
_log = logging.getLogger("functions.reward")

Cancelled = Callable[[], bool]


class CallTimeout(Exception):
    """No reply in time."""


class CallCancelled(Exception):
    """The caller no longer wants the reply."""


class WorkerDied(Exception):
    """The worker ended. ``status`` is its wait status; None if even the supervisor was killed."""

    def __init__(self, status: int | None) -> None:
        super().__init__()
        self.status = status

    def describe(self) -> str:
        """Completes "reward 'x' ..."."""
        if self.status is None:
            return "lost its worker process"
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            name = signal.Signals(number).name
            text = (signal.strsignal(number) or "").lower()
            more = ", perhaps for want of memory" if number == signal.SIGKILL else ""
            return f"crashed its process: {name} ({text}{more})"
        return f"ended its process with exit code {os.waitstatus_to_exitcode(self.status)}"


class Worker:
    """A running worker process. ``name`` marks its lines in the log.

    ``notes`` (shared memory) tells which sample is looked at; ``trace`` (a shared file) receives
    the stack of a crash or, on request, of a hang; ``output`` carries stdout and stderr.
    """

    def __init__(self, name: str, *, network: bool) -> None:
        self.name = name
        self.lines: deque[str] = deque(maxlen=20)
        self.pid: int | None = None
        self._received = bytearray()
        self._partial = b""
        self._notes_file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self._notes_file.truncate(SHARED_BYTES)
        self._notes = mmap.mmap(self._notes_file.fileno(), SHARED_BYTES)
        self._trace_file = tempfile.TemporaryFile()  # noqa: SIM115
        self._calls, calls = socket.socketpair()
        self._control, control = socket.socketpair()
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        shared = [s.fileno() for s in (calls, control, self._notes_file, self._trace_file)]
        command = [sys.executable, "-m", "functions.reward.worker", *map(str, shared)]
        try:
            self._process = subprocess.Popen(  # noqa: S603 (our own module)
                [*command, "open" if network else "isolated"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=shared,
                env=_environment(),
                start_new_session=True,
            )
        finally:
            calls.close()
            control.close()
            os.close(output)
        self._poll = select.poll()
        for descriptor in (self._calls.fileno(), self._control.fileno(), self._output):
            self._poll.register(descriptor, select.POLLIN)

    def exchange(self, message: bytes | None, timeout_s: float, cancelled: Cancelled) -> Reply:
        """Send a packed message (None: nothing) and wait for the reply.

        Raises ``CallTimeout``, ``CallCancelled`` or ``WorkerDied``; then close the worker.
        """
        deadline = time.monotonic() + timeout_s
        if message is not None:
            self._calls.settimeout(timeout_s)
            try:
                self._calls.sendall(message)
            except TimeoutError:
                raise CallTimeout from None
            except OSError:
                raise self._death() from None
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise CallTimeout
            if cancelled():
                raise CallCancelled
            ready = {fd for fd, _ in self._poll.poll(1000 * min(left, SLICE_S))}
            if self._output in ready:
                self._drain()
            if self._calls.fileno() in ready:
                chunk = self._receive_chunk()
                self._received += chunk
                try:
                    body = unpack_from(self._received)
                except ValueError:
                    raise self._death() from None
                if body is not None:
                    self._drain()
                    return reply_decoder.decode(body)
                if not chunk:
                    raise self._death()
            elif self._control.fileno() in ready:
                raise self._death()

    def crash_stack(self) -> str:
        """The Python stacks of a crash; "" if it left none."""
        return os.pread(self._trace_file.fileno(), 1 << 16, 0).decode(errors="replace")

    def current_stack(self) -> str:
        """The Python stacks of the running worker; "" if it is mute."""
        text = ""
        if self.pid is None:
            return text
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, TRACE_SIGNAL)
        until = time.monotonic() + TRACE_WAIT_S
        while time.monotonic() < until:
            time.sleep(0.01)
            before, text = text, self.crash_stack()
            if text and text == before:
                break
        return text

    def last_sample(self, num_samples: int) -> int:
        """The index of the sample user code read last, or ``NO_SAMPLE``."""
        with memoryview(self._notes) as notes, notes.cast("q") as indices:
            return last_sample(indices, num_samples)

    def close(self) -> None:
        """Kill the worker and all it started; returns when they are gone."""
        self._control.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self.pid is not None and self._process.returncode != 0:
            # The supervisor itself was killed; what it would have killed shares the worker's group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._calls.close()
        if self._output >= 0:
            os.close(self._output)
            self._output = -1
        self._notes.close()
        self._notes_file.close()
        self._trace_file.close()

    def _receive_chunk(self) -> bytes:
        try:
            return self._calls.recv(1 << 20)
        except OSError:
            return b""

    def _death(self) -> WorkerDied:
        """Learn from the supervisor how the worker ended."""
        buffer = bytearray()
        self._control.settimeout(10)
        body = None
        try:
            while body is None and (chunk := self._control.recv(4096)):
                buffer += chunk
                body = unpack_from(buffer)
        except OSError:
            body = None
        self._drain()
        return WorkerDied(None if body is None else exited_decoder.decode(body).status)

    def _drain(self) -> None:
        """Take what user code printed: the last lines for errors, all of it for the log."""
        for _ in range(_READS):  # bounded: it may print faster than we read
            try:
                chunk = os.read(self._output, 1 << 16)
            except BlockingIOError:
                return
            if not chunk:
                with contextlib.suppress(KeyError):
                    self._poll.unregister(self._output)
                self._keep(self._partial)
                self._partial = b""
                return
            *whole, rest = (self._partial + chunk).split(b"\n")
            for line in whole:
                self._keep(line)
            self._partial = rest[-_LINE_BYTES:]

    def _keep(self, line: bytes) -> None:
        text = line[:_LINE_BYTES].decode(errors="replace").rstrip()
        if text:
            self.lines.append(text)
            _log.info("[%s] %s", self.name, text)


def _environment() -> dict[str, str]:
    """Ours less our own settings (tokens among them), and able to import this package."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RLHFLESS_")}
    paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}
