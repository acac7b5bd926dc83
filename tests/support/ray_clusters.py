"""A Ray cluster that is there before us, as an operator runs it: a head with its dashboard, which
asks for Ray's token, and nodes that come and go. By the real ``ray`` command, on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.runs import ROOT, wait_for

HOST = "127.0.0.1"


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@dataclass
class OutsideRay:
    """``address``: of its dashboard; ``serve_url``: where Serve is, once it has been started."""

    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    port: int = field(default_factory=free_port)
    dashboard: int = field(default_factory=free_port)
    serve: int = field(default_factory=free_port)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.dashboard}"

    @property
    def serve_url(self) -> str:
        return f"http://{HOST}:{self.serve}"

    def start_head(self, num_cpus: int = 8) -> None:
        self._start(
            "--head",
            f"--port={self.port}",
            f"--num-cpus={num_cpus}",
            f"--dashboard-host={HOST}",
            f"--dashboard-port={self.dashboard}",
            f"--temp-dir={self.folder}",
        )

        def answers() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                self._get("/api/jobs/")
                return True
            return False

        wait_for(answers, "Ray's dashboard", pause_s=0.2)

    def add_node(self, resource: str) -> str:
        """A node with one CPU and one of ``resource``; its id."""
        before = set(self.nodes(resource))
        self._start(f"--address={self._gcs()}", "--num-cpus=1", f'--resources={{"{resource}": 1}}')
        return wait_for(
            lambda: next(iter(set(self.nodes(resource)) - before), None), "a node", pause_s=0.2
        )

    def nodes(self, resource: str) -> list[str]:
        """Ids of those that live and have it."""
        told = self._get("/nodes?view=summary")
        states = [node["raylet"] for node in told["data"]["summary"]]
        return [
            state["nodeId"]
            for state in states
            if state.get("state") == "ALIVE" and resource in state.get("resourcesTotal", {})
        ]

    def drain(self, node: str) -> None:
        """What a cloud's notice of preemption becomes in Ray."""
        self._ray(
            "drain-node",
            f"--address={self._gcs()}",
            f"--node-id={node}",
            "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=spot",
            "--deadline-remaining-seconds=60",
        )

    def _get(self, path: str) -> Any:
        headers = {"authorization": f"Bearer {self.token}"}
        answer = httpx.get(self.address + path, headers=headers, trust_env=False)
        return answer.raise_for_status().json()

    def _gcs(self) -> str:
        """As the head says it to those who want to join."""
        log = self.folder / "start.log"
        said = re.compile(r"ray start --address='(.+?)'")
        return wait_for(lambda: said.search(log.read_text()), "the head's address")[1]

    def kill_last_node(self) -> None:
        """Its machine is gone: everything that belongs to it dies at once."""
        node = self.processes.pop()
        _kill_session(node.pid)
        node.wait()

    def _start(self, *options: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options]
        command += [f"--node-ip-address={HOST}", "--object-store-memory=80000000"]
        command.append(f"--dashboard-agent-listen-port={free_port()}")  # others may have the usual
        command += ["--disable-usage-stats", "--log-color=false"]
        with (self.folder / "start.log").open("ab") as log:
            self.processes.append(
                subprocess.Popen(
                    command, env=self._environment(), stdout=log, stderr=log, start_new_session=True
                )
            )

    def _ray(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", *arguments]
        subprocess.run(command, env=self._environment(), check=True, capture_output=True)

    def _environment(self) -> dict[str, str]:
        """As in an image that has rlhfless."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept: dict[str, Any] = {k: v for k, v in os.environ.items() if not k.startswith("RLHFLESS")}
        return kept | {
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "RAY_prestart_worker_first_driver": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
        }

    def close(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        for process in self.processes:
            _kill_session(process.pid)
            process.wait()


def _kill_session(leader: int) -> None:
    """All that belongs to a node; Ray's processes write over their environments and names."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(name)) == leader:
                os.kill(int(name), signal.SIGKILL)


@contextlib.contextmanager
def outside_ray() -> Generator[OutsideRay, None, None]:
    with tempfile.TemporaryDirectory(prefix="ro-", dir="/tmp", ignore_cleanup_errors=True) as name:
        cluster = OutsideRay(Path(name))
        try:
            cluster.start_head()
            yield cluster
        finally:
            cluster.close()
