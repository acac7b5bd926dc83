"""Groups of training workers that somebody else starts: a process a node, or a process a rank."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from rlhfless.frames import FrameReader, encode_request
from rlhfless.messages import AnyFrame, Problem, TrainDone, TrainRequest
from tests.support.runs import ROOT, wait_for
from tests.support.training import SETTINGS, Job

pytestmark = pytest.mark.slow
TOKEN = secrets.token_hex(8)
PATIENCE_S = 120.0


def free_port() -> int:
    with socket.create_server(("", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def worker(
    folder: Path, name: str, *options: str, **given: str
) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RLHFLESS_FUNCTION_TOKEN": TOKEN,
        "GLOO_SOCKET_IFNAME": "lo",
        **given,
    }
    command = [sys.executable, "-m", "functions.host", "--function=training", "--workers=2"]
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            [*command, f"--workdir={folder / name}", *options],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def group(folder: Path, form: str) -> Iterator[tuple[list[subprocess.Popen[bytes]], str]]:
    """Two workers, and the leader's socket once it is ready."""
    meeting, path = free_port(), str(folder / "leader.sock")
    with ExitStack() as stack:
        processes = []
        for rank in (1, 0):  # pods come up in any order
            options = [f"--socket={path}"]
            given = {}
            if form == "nodes":
                options += ["--nodes=2", f"--node-rank={rank}", f"--rendezvous=127.0.0.1:{meeting}"]
            else:
                given = {
                    "RANK": str(rank),
                    "WORLD_SIZE": "2",
                    "LOCAL_RANK": str(rank),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(meeting),
                }
            processes.append(
                stack.enter_context(worker(folder, f"worker-{rank}", *options, **given))
            )
        processes.reverse()
        wait_for(lambda: os.path.exists(path) or None, "the leader's socket", PATIENCE_S)
        yield processes, path


def called(path: str, request: TrainRequest) -> AnyFrame:
    """The last frame."""
    reader, frames = FrameReader(), []
    with httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=PATIENCE_S) as client:
        headers = {"authorization": f"Bearer {TOKEN}"}
        with client.stream(
            "POST", "http://leader/v1/train", headers=headers, content=encode_request(request)
        ) as response:
            assert response.status_code == 200
            for chunk in response.iter_raw():
                frames += list(reader.feed(chunk))
    return frames[-1]


@pytest.mark.parametrize("form", ["nodes", "ranks"])
def test_ranks_that_others_start_are_one_instance(
    tmp_path: Path, tiny_model_dir: Path, form: str
) -> None:
    job = Job(tmp_path / "store", tiny_model_dir)
    with group(tmp_path, form) as (processes, path):
        done = called(path, job.request(0))
        assert isinstance(done, TrainDone) and done.version == 1
        processes[0].terminate()
        assert [process.wait(PATIENCE_S) for process in processes] == [0, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_machine_goes_the_others_end_and_say_so(
    tmp_path: Path, tiny_model_dir: Path, rank: int
) -> None:
    job = Job(tmp_path / "store", tiny_model_dir)
    with group(tmp_path, "nodes") as (processes, path):
        assert isinstance(called(path, job.request(0)), TrainDone)
        job.settings = msgspec.structs.replace(SETTINGS, passes=100_000)
        request = job.request(1)
        killer = threading.Timer(0.5, os.kill, (processes[rank].pid, signal.SIGKILL))
        killer.start()
        if rank == 0:
            with pytest.raises(httpx.TransportError):
                called(path, request)
        else:
            end = called(path, request)
            assert isinstance(end, Problem)
            assert end.problem["category"] == "transient"
            assert "worker 1 of 2 ended: its connection closed" in end.problem["detail"]
        killer.join()
        assert processes[1 - rank].wait(PATIENCE_S) == 1


def test_a_stranger_is_not_let_into_a_group(tmp_path: Path, tiny_model_dir: Path) -> None:
    """A worker with another token is turned away, and the group waits for the right one."""
    meeting = free_port()
    path = str(tmp_path / "leader.sock")
    options = [f"--rendezvous=127.0.0.1:{meeting}", "--nodes=2", f"--socket={path}"]
    with (
        worker(tmp_path, "leader", *options),
        worker(
            tmp_path, "stranger", *options, "--node-rank=1", RLHFLESS_FUNCTION_TOKEN="another"
        ) as stranger,
    ):
        assert stranger.wait(PATIENCE_S) == 1
        assert not os.path.exists(path)
        with worker(tmp_path, "follower", *options, "--node-rank=1"):
            wait_for(lambda: os.path.exists(path) or None, "the leader's socket", PATIENCE_S)
    assert "no worker's was closed" in (tmp_path / "leader.log").read_text()
