"""How the local platform makes processes: forked off a warm zygote, or fresh.

Both are given the fields of ``functions.host.HostConfig`` as a dictionary and return a ``Process``
whose ``exited`` future resolves when the process is gone, however it went. A zygote that dies is
replaced at the next spawn; the instances it made live on and are watched by the kernel's word.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

import rlhfless
from rlhfless.errors import (
    CapacityError,
    InternalError,
    RlhflessError,
    TransientError,
    of_os_error,
)
from rlhfless.lifeline import Home

TOKEN_VARIABLE = "RLHFLESS_FUNCTION_TOKEN"  # noqa: S105  (the name of a variable)
PRELOAD = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "fsspec.implementations.local",
    "safetensors.torch",
    "uvicorn.protocols.http.auto",
    "uvicorn.loops.auto",
)
_SPAWN_ATTEMPTS = 3
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Process:
    """``exited`` holds ``Popen.returncode`` (negative: the signal), None where nobody can know."""

    pid: int
    exited: asyncio.Future[int | None] = field(repr=False)

    def send(self, number: signal.Signals) -> None:
        """Signal the process, unless it is gone."""
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Launcher(Protocol):
    async def spawn(self, config: Mapping[str, Any]) -> Process:
        """Raises ``CapacityError`` if no process can be had."""
        ...

    async def close(self) -> None: ...


class FreshLauncher:
    """Every instance is a new interpreter: seconds to import torch, but nothing inherited."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._watching: set[asyncio.Task[None]] = set()

    async def spawn(self, config: Mapping[str, Any]) -> Process:
        options = {k: v for k, v in config.items() if k != "token"}
        command = [sys.executable, "-P", "-m", "functions.host"]
        for name, value in options.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        environment = _environment() | {TOKEN_VARIABLE: str(config["token"])}
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[name] = str(config["threads"])
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                pass_fds=(self._home.lifeline_fd,),
            )
        except OSError as error:
            raise CapacityError(f"cannot start a process: {error.strerror}") from error
        process = Process(child.pid, asyncio.get_running_loop().create_future())

        async def wait() -> None:
            status = await child.wait()
            _end_group(child.pid)
            self._home.forget(child.pid)
            process.exited.set_result(status)

        task = asyncio.create_task(wait())
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return process

    async def close(self) -> None:
        await asyncio.gather(*self._watching)


class ZygoteLauncher:
    """Instances forked off ``functions.zygote``. ``log`` is the zygote's own log file."""

    def __init__(self, home: Home, log: str, preload: Sequence[str] = PRELOAD) -> None:
        self._home = home
        self._log = log
        self._preload = preload
        self._zygote: _Zygote | None = None
        self._starting = asyncio.Lock()
        self._closing = False

    async def spawn(self, config: Mapping[str, Any]) -> Process:
        for _ in range(_SPAWN_ATTEMPTS):
            zygote = await self.start()
            try:
                return await zygote.spawn(config)
            except TransientError as error:
                if self._closing:
                    raise
                _log.warning("%s; starting another", error)
        raise CapacityError(f"the zygote died {_SPAWN_ATTEMPTS} times; its log is {self._log}")

    async def start(self) -> _Zygote:
        """The running zygote, a new one if there is none; does not wait for its imports."""
        async with self._starting:
            if self._zygote is None or self._zygote.closed:
                self._zygote = await _Zygote.start(self._home, self._log, self._preload)
            return self._zygote

    async def close(self) -> None:
        """Ends the zygote; a spawn that still waits for it raises ``TransientError``."""
        self._closing = True
        async with self._starting:
            if self._zygote is not None:
                await self._zygote.close()


class _Zygote:
    """The controller's end of one zygote process."""

    def __init__(
        self,
        home: Home,
        child: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.closed = False
        self._failure: RlhflessError = TransientError(
            "the zygote that instances are forked off died"
        )
        self._home = home
        self._child = child
        self._writer = writer
        self._spawning: dict[int, asyncio.Future[Process]] = {}
        self._processes: dict[int, Process] = {}
        self._next = 0
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def start(cls, home: Home, log: str, preload: Sequence[str]) -> _Zygote:
        ours, theirs = socket.socketpair()
        environment = _environment()
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[name] = "1"  # no thread may run when it forks; instances set their own
        arguments = ["-P", "-m", "functions.zygote", home.path, str(home.lifeline_fd), *preload]
        try:
            with theirs, _append_to(log) as file:
                child = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *arguments,
                    stdin=theirs.fileno(),
                    stdout=file,
                    stderr=file,
                    env=environment,
                    start_new_session=True,
                    pass_fds=(home.lifeline_fd,),
                )
        except OSError as error:
            ours.close()
            raise CapacityError(f"cannot start a process: {error.strerror}") from error
        except BaseException:
            ours.close()
            raise
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(home, child, reader, writer)

    async def spawn(self, config: Mapping[str, Any]) -> Process:
        """Raises ``TransientError`` if the zygote dies first, ``InternalError`` if it babbles."""
        number = self._next = self._next + 1
        spawned: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self._spawning[number] = spawned
        if self.closed:
            self._fail_spawns()
        else:
            line = json.dumps({"spawn": number, "config": dict(config)})
            self._writer.write(line.encode() + b"\n")
        try:
            return await spawned
        except asyncio.CancelledError:
            if (
                not spawned.cancelled() and spawned.exception() is None
            ):  # just before nobody wants it
                spawned.result().send(signal.SIGKILL)
            raise

    async def close(self) -> None:
        """It ends when its socket does; what it forked must have been stopped before."""
        self._writer.close()
        try:
            async with asyncio.timeout(2):
                await self._child.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
            await self._child.wait()
        await self._reading

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Its reports, until its end of the socket closes, which means that it is gone."""
        line = b""
        try:
            async for line in reader:
                self._handle(json.loads(line))
        except ConnectionError:
            pass
        except (ValueError, LookupError) as error:  # no JSON, far too long, or of nothing we know
            _log.exception("the zygote's report %r", line[:200])
            self._failure = InternalError(
                f"the zygote that instances are forked off sent a broken report: {error}"
            )
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
        self.closed = True
        self._writer.close()
        self._fail_spawns()
        for process in list(self._processes.values()):
            _watch_orphan(process, self._home)
        await self._child.wait()
        self._home.forget(self._child.pid)

    def _handle(self, message: dict[str, Any]) -> None:
        match message:
            case {"spawned": number, "pid": pid}:
                process = Process(pid, asyncio.get_running_loop().create_future())
                self._processes[pid] = process
                spawned = self._spawning.pop(number)
                if spawned.cancelled():  # nobody wants it any more
                    process.send(signal.SIGKILL)
                else:
                    spawned.set_result(process)
            case {"exited": pid, "status": status}:
                self._home.forget(pid)
                self._processes.pop(pid).exited.set_result(status)

    def _fail_spawns(self) -> None:
        for spawned in self._spawning.values():
            if not spawned.done():
                spawned.set_exception(self._failure)
        self._spawning.clear()


def _watch_orphan(process: Process, home: Home) -> None:
    """Learn of the end of a process that is no child of ours (its zygote died)."""
    loop = asyncio.get_running_loop()

    def gone() -> None:
        _end_group(process.pid)
        home.forget(process.pid)
        if not process.exited.done():
            process.exited.set_result(None)

    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        gone()
        return

    def readable() -> None:
        loop.remove_reader(fd)
        os.close(fd)
        gone()

    loop.add_reader(fd, readable)


def _end_group(pid: int) -> None:
    """End what an instance that is gone left in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _append_to(path: str) -> BinaryIO:
    try:
        return open(path, "ab")
    except OSError as error:
        raise of_os_error(f"cannot write {path}", error) from error


def _environment() -> dict[str, str]:
    """Ours, with this source tree importable (``-P`` keeps the current folder from shadowing), and
    without the address of the job store, which may hold its password: no function needs it.

    Threads of numerics sleep while they wait for each other. By default they spin, and where other
    processes (functions, too) want the same cores, each then spins away what another needs: a step
    of training on two threads was seen to take twenty times as long.
    """
    tree = os.path.dirname(os.path.dirname(os.path.abspath(rlhfless.__file__)))
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(p for p in (tree, inherited) if p)
    return {
        "OMP_WAIT_POLICY": "passive",
        **{name: value for name, value in os.environ.items() if name != "REDIS_URL"},
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
    }
