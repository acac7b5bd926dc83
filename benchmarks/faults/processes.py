"""The processes of the service under test, and what can be seen of them from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from controller.redis_server import server_binary

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120.0
END_S = 40.0
MARK = "RLHFLESS_FAULTS_MARK"
"""In the environment of everything the benchmark starts, and of what that starts."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Process:
    """One that is started again and again; it says what it says to ``log``."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command = command
        self._environment = environment
        self.log = log
        self.running: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.running is not None
        return self.running.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=ROOT,
            )

    def signal(self, number: signal.Signals) -> None:
        assert self.running is not None
        self.running.send_signal(number)

    def kill(self) -> None:
        if self.running is not None:
            self.running.kill()
            self.running.wait()

    async def stop(self) -> int | None:
        """As a rolling restart does; its exit code, None if it has to be killed."""
        assert self.running is not None
        self.running.terminate()
        try:
            return await asyncio.to_thread(self.running.wait, END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


class RedisServer(Process):
    """Keeps its data in ``folder``."""

    def __init__(self, folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self.port = free_port()
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)]
        words += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        super().__init__([server_binary(), *words], environment, log)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Redis:
        """Straight to it, without patience."""
        return Redis(port=self.port, socket_timeout=2, retry=Retry(NoBackoff(), 0))

    async def up(self) -> None:
        """Start it, and wait until it has read its data."""
        self.start()
        async with self.client() as client:
            await _until(self, client)


class Replica(Process):
    """A replica of the service, on a port that stays."""

    def __init__(
        self, number: int, words: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.number = number
        self.port = free_port()
        command = [sys.executable, "-m", "rlhfless.cli.main", "serve", "--port", str(self.port)]
        super().__init__([*command, *words], environment, folder / f"replica-{number}.log")

    async def up(self) -> None:
        """Start it, and wait until it answers. Raises ``RuntimeError`` if it ends instead."""
        self.start()
        loop = asyncio.get_running_loop()
        give_up = loop.time() + WAIT_S
        while not _listens(self.port):
            assert self.running is not None
            if self.running.poll() is not None or loop.time() > give_up:
                raise RuntimeError(f"replica {self.number} does not come up\n{self.tail()}")
            await asyncio.sleep(0.05)


async def _until(server: RedisServer, client: Redis) -> None:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + WAIT_S
    while True:
        with contextlib.suppress(RedisError, OSError):
            if await client.ping():
                return
        assert server.running is not None
        if server.running.poll() is not None or loop.time() > give_up:
            raise RuntimeError(f"Redis does not come up\n{server.tail()}")
        await asyncio.sleep(0.05)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def ours(mark: str) -> dict[int, str]:
    """Names of living processes with the mark in their environment, by pid."""
    needle = f"{MARK}={mark}".encode()
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            # A zombie has no environment any more.
            if needle in Path(f"/proc/{entry}/environ").read_bytes():
                found[int(entry)] = Path(f"/proc/{entry}/comm").read_text().strip()
    return found


FUNCTION_NAMES = ("rlhf-rollout", "rlhf-training", "rlhf-reward")


def functions(mark: str) -> list[int]:
    """Pids of function instances."""
    return sorted(pid for pid, name in ours(mark).items() if name.startswith(FUNCTION_NAMES))
