"""Our end of a tracker's process: starts it, gives orders, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process

import msgspec

import rlhfless
from controller.integrations.worker import Answer, Order
from rlhfless.errors import TransientError, of_os_error

_LINE_BYTES = 1 << 20
_decode = msgspec.json.Decoder(Answer).decode
_encode = msgspec.json.encode

# What a service's own environment may lend to a user's tracker: none of its keys.
_HARMLESS = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHONPATH")


class TrackerProcess:
    """``log`` is a file for what the library prints; ``own_environment``: it may use ours, keys
    and settings included."""

    def __init__(self, folder: str, log: str | None, *, own_environment: bool) -> None:
        self._folder = folder
        self._log = log
        self._own_environment = own_environment
        self._process: Process | None = None

    async def start(self) -> None:
        """Raises ``CapacityError`` or ``UserError`` if no process can be had."""
        try:
            os.makedirs(self._folder, exist_ok=True)
            with contextlib.ExitStack() as files:
                stderr = DEVNULL
                if self._log is not None:
                    os.makedirs(os.path.dirname(self._log), exist_ok=True)
                    stderr = os.open(self._log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
                    files.callback(os.close, stderr)
                # A session of its own: Ctrl-C is for the controller to deal with.
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "controller.integrations.worker"),
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=stderr,
                    env=self._environment(),
                    start_new_session=True,
                    limit=_LINE_BYTES,
                )
        except OSError as error:
            raise of_os_error("cannot start a tracker's process", error) from error

    async def ask(self, order: Order, wait_s: float) -> Answer:
        """Raises ``TransientError`` if the process is gone or does not answer; it must be ended
        then, since its answers would be taken for others'."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(wait_s):
                process.stdin.write(_encode(order) + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            raise TransientError(f"no answer within {wait_s:g} s") from None
        except (OSError, ValueError) as error:  # a broken pipe, or no line
            raise TransientError("its process has ended") from error
        try:
            return _decode(line)
        except msgspec.DecodeError:
            raise TransientError("its process has ended") from None

    async def end(self, grace_s: float = 0.0) -> None:
        """Let the process go; what is left of it after ``grace_s`` is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):  # its helpers are of its session
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        if not self._own_environment:
            environment = {k: v for k, v in environment.items() if k in _HARMLESS}
            # Where libraries look for keys of whoever runs the process.
            environment |= {"HOME": self._folder, "NETRC": os.devnull}
        tree = os.path.dirname(os.path.dirname(os.path.abspath(rlhfless.__file__)))
        inherited = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(p for p in (tree, inherited) if p)
        return environment
