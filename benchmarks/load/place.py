"""The processes under load: a Redis, a replica of the service, and the peer; and what its jobs
need."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from benchmarks.load.http import Site
from benchmarks.models import QUICKSTART
from controller.redis_server import server_binary

_ROOT = Path(__file__).resolve().parents[2]
_WAIT_S = 120.0
_END_S = 30.0

_REWARD = '''"""Right answers, after a while: a step of these jobs waits more than it
computes, as where functions have accelerators of their own."""

import asyncio


async def exact_match(prompts, completions, answer, **_):
    await asyncio.sleep({pause_s})
    return [float(c == a) for c, a in zip(completions, answer)]
'''


def library(folder: Path, pause_s: float) -> None:
    """The quick start's model and data, and its reward made slow."""
    target = folder / "load"
    shutil.copytree(QUICKSTART.parent, target)
    (target / "rewards.py").write_text(_REWARD.format(pause_s=pause_s))


def job(name: str, steps: int) -> dict[str, Any]:
    """A very small job: three functions of one instance each."""
    return {
        "name": name,
        "model": {"path": "library:load/model"},
        "dataset": {"path": "library:load/data/train.jsonl"},
        "rewards": [{"python": "library:load/rewards.py:exact_match"}],
        "algorithm": {"group_size": 4},
        "rollout": {"max_tokens": 8, "max_instances": 1},
        "training": {"steps": steps, "prompts_per_step": 2, "keep_versions": 1},
    }


INSTANCES_A_JOB = 3


@dataclass(frozen=True)
class Process:
    name: str
    running: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.running.pid

    def cpu_s(self) -> float:
        """User and system time so far, its own threads only."""
        return cpu_s(self.pid)

    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s*(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found.group(1)) / 1024

    def end(self) -> None:
        self.running.terminate()
        try:
            self.running.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Place:
    """``with Place(folder, jobs, pause_s) as place``; nothing it started outlives it. ``jobs`` may
    run at once; ``pause_s``: seconds that a reward takes."""

    def __init__(self, folder: Path, jobs: int, pause_s: float) -> None:
        self._folder = folder
        self._processes: list[Process] = []
        self._jobs = jobs
        library(folder / "library", pause_s)

    def __enter__(self) -> Place:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.end()

    def _start(self) -> None:
        port = _free_port()
        words = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        words += ["--appendonly", "yes", "--save", "", "--logfile", "redis.log"]
        self.redis = self._run("redis", [server_binary(), *words])
        self.client = Redis(port=port)
        self._until(self.redis, self._pings)
        self._environment = {**os.environ, "REDIS_URL": f"redis://127.0.0.1:{port}/0"}
        made = self._command(
            "keys", "create", "--tenant", "load", "--name", "load", "--scope", "admin", "--json"
        )
        key = json.loads(subprocess.check_output(made, env=self._environment, cwd=_ROOT))["key"]
        self.peer_site, self.site = (
            Site("127.0.0.1", _free_port()),
            Site("127.0.0.1", _free_port(), key),
        )
        module = [sys.executable, "-m", "benchmarks.load.empty", str(self.peer_site.port)]
        self.peer = self._run("peer", module)
        words = ["--port", str(self.site.port), "--data", str(self._folder / "data")]
        words += ["--library", str(self._folder / "library"), "--log-level", "warning"]
        words += ["--instances", str(INSTANCES_A_JOB * self._jobs)]
        self.replica = self._run("replica", self._command("serve", *words))
        self._until(self.peer, lambda: _listens(self.peer_site.port))
        self._until(self.replica, lambda: _listens(self.site.port))

    def functions(self) -> int:
        """Function instances that are there, as processes."""
        names = (Path(f"/proc/{pid}/comm") for pid in os.listdir("/proc") if pid.isdigit())
        return sum(_read(name).startswith("rlhf-") for name in names)

    def said(self) -> str:
        """What the replica wrote that it should not have had to."""
        return (self._folder / "replica.log").read_text()

    def _pings(self) -> bool:
        try:
            return bool(self.client.ping())
        except RedisError:
            return False

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "rlhfless.cli.main", *words]

    def _run(self, name: str, command: list[str]) -> Process:
        environment = getattr(self, "_environment", os.environ)
        with open(self._folder / f"{name}.log", "wb") as log:
            running = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=_ROOT,
            )
        process = Process(name, running)
        self._processes.append(process)
        return process

    def _until(self, process: Process, true: Callable[[], bool]) -> None:
        give_up = time.monotonic() + _WAIT_S
        while not true():
            if process.running.poll() is not None or time.monotonic() > give_up:
                log = (self._folder / f"{process.name}.log").read_text()
                sys.exit(f"{process.name} does not come up\n{log}")
            time.sleep(0.05)


def interruptible() -> None:
    """SIGTERM ends the benchmark as Ctrl-C does, so that it leaves nothing behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
