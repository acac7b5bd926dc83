"""A local platform of probes (``tests/apps/probe.py``), and what to look for in ``/proc``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import Any

from controller.ledger import Ledger
from controller.platforms.base import Deployment, Platform
from controller.platforms.local import LocalOptions, LocalPlatform
from rlhfless.messages import (
    FUNCTION_NAMES,
    Algorithm,
    AnyFrame,
    BatchRef,
    CallInfo,
    Heartbeat,
    ModelRef,
    Optimization,
    Progress,
    Request,
    RolloutRequest,
    SampleTask,
    SamplingParams,
    TrainRequest,
)

PROBES = dict.fromkeys(FUNCTION_NAMES, "tests.apps.probe:create")
MODEL = ModelRef(path="m", job="job", version=0)


def options(*, zygote: bool = True, app: str = "create", **others: Any) -> LocalOptions:
    apps = dict.fromkeys(FUNCTION_NAMES, f"tests.apps.probe:{app}")
    return LocalOptions(
        apps=apps,
        zygote=zygote,
        preload=(),
        retry_pause_s=0.02,
        **others,
    )


@contextlib.asynccontextmanager
async def platform_of(
    folder: Path, *deployments: Deployment, settings: LocalOptions | None = None
) -> AsyncGenerator[LocalPlatform, None]:
    async with LocalPlatform(
        deployments or [Deployment("rollout")],
        ledger=Ledger(),
        folder=str(folder / "logs"),
        options=settings or options(),
    ) as platform:
        yield platform


def call_info(behaviour: str, store: Path | str = "/nowhere", name: str = "0/x/0") -> CallInfo:
    return CallInfo(id=name, job=behaviour, step=0, deadline_s=60, store=str(store))


def rollout(behaviour: str = "echo", samples: int = 1) -> RolloutRequest:
    return RolloutRequest(
        call=call_info(behaviour),
        model=MODEL,
        sampling=SamplingParams(),
        prompts=[[1]],
        samples=[SampleTask(id=str(i), prompt=0, seed=i, max_tokens=4) for i in range(samples)],
    )


def train(store: Path, name: str, behaviour: str = "echo") -> TrainRequest:
    return TrainRequest(
        call=call_info(behaviour, store, name),
        model=MODEL,
        batch=BatchRef(name="b", sha256="", num_samples=1),
        algorithm=Algorithm(name="grpo", advantage="group_norm"),
        optimization=Optimization(learning_rate=1e-3, total_steps=1),
        seed=0,
    )


async def frames_of(platform: Platform, request: Request) -> list[AnyFrame]:
    """All but the heartbeats."""
    return [f async for f in platform.invoke(request) if not isinstance(f, Heartbeat)]


async def collect(platform: LocalPlatform, frames: list[AnyFrame], behaviour: str) -> None:
    """Run a call to its end; its frames can be seen as they come."""
    async for frame in platform.invoke(rollout(behaviour)):
        frames.append(frame)  # noqa: PERF401


def pid_in(frames: list[AnyFrame]) -> int:
    (first, *_) = frames
    assert isinstance(first, Progress)
    return first.kv_tokens


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """``within_s`` on the loop's clock, which may be a virtual one."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + within_s
    while not condition():
        assert loop.time() < give_up, "it never came to be"
        await asyncio.sleep(0.005)


def lives(pid: int) -> bool:
    """It is there and no zombie that only its parent has not waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def home_of(platform: LocalPlatform) -> str:
    """The private folder of a platform that has started something."""
    return platform.host.home.path


def marked(mark: str, words: str | None = None) -> dict[int, str]:
    """Living processes with ``mark`` in their environment, or ``words`` in their command line, with
    their command lines."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid() or not lives(int(name)):
            continue
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{name}/environ").read_bytes()
            command = command_of(int(name))
            if mark.encode() in environment or (words is not None and words in command):
                found[int(name)] = command
    return found


def wait_until_gone(pids: Iterable[int], within_s: float = 10.0) -> None:
    give_up = time.monotonic() + within_s
    while left := [pid for pid in pids if lives(pid)]:
        assert time.monotonic() < give_up, f"still there: {left}"
        time.sleep(0.01)


def wait_for_handler(pid: int, number: signal.Signals, within_s: float = 60.0) -> None:
    """Until the process handles the signal."""
    give_up = time.monotonic() + within_s
    while True:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        (caught,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
        if int(caught, 16) >> (number - 1) & 1:
            return
        assert lives(pid) and time.monotonic() < give_up, f"{pid} does not handle {number.name}"
        time.sleep(0.01)
