"""What frames cost the controller on their way from a socket to the collector.

The calls of a rollout are real: ``Rollout``, its actors, the dispatcher, the HTTP client of the
Knative platform, the frames' decoder, the collector. The functions are one process that makes
tokens up (``benchmarks.large.streams``), on the other core. Nothing of it is virtual.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import httpx

from benchmarks.large.streams import TOKENS_PER_S
from controller.collector import Collector, Sample
from controller.dispatch import Dispatcher, RetryPolicy
from controller.job import Job
from controller.platforms.knative_calls import Terms, call, new_client
from controller.requests import RolloutTask
from controller.rollout import Rollout
from controller.timeline import Timeline
from rlhfless.messages import AnyFrame, Request
from rlhfless.spec import JobSpec

PROMPT_TOKENS = 512


@dataclass(frozen=True)
class Load:
    """``streams`` of ``rows`` samples each, told every ``every_s`` for ``seconds``."""

    streams: int
    rows: int
    every_s: float
    seconds: float

    @property
    def offered(self) -> float:
        """Frames a second."""
        return self.streams / self.every_s


@dataclass(frozen=True)
class Carried:
    """``cpu_s`` of the controller's process in ``wall_s``; ``lag_s``: the longest that its loop
    came late to a timer."""

    load: Load
    frames: int
    cpu_s: float
    wall_s: float
    lag_s: float

    @property
    def frame_us(self) -> float:
        return 1e6 * self.cpu_s / self.frames

    @property
    def per_s(self) -> float:
        return self.frames / self.wall_s


class _Wire:
    """A platform of one URL, which counts."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url
        self._terms = Terms("token", 600.0, 60.0)
        self.frames = 0

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame]:
        frames = call(self._client, self._url, request, self._terms, lambda _: None)
        async with contextlib.aclosing(frames):
            async for frame in frames:
                self.frames += 1
                yield frame


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The functions' process; its URL."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        command = [sys.executable, "-m", "benchmarks.large.streams", str(listener.fileno())]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            process.terminate()
            process.wait()


def carry(url: str, load: Load) -> Carried:
    return asyncio.run(_carry(url, load))


async def _carry(url: str, load: Load) -> Carried:
    job, collector, assignment = _made(load)
    async with new_client() as client:
        await client.get(url)  # whoever starts answers late
        wire = _Wire(client, url)
        job.dispatcher = Dispatcher(cast(Any, wire), Timeline(), random.Random(0), RetryPolicy())
        task = RolloutTask(1, 1, progress_s=load.every_s)
        rollout = Rollout(cast(Job, job), task, collector, _nothing)
        lags: list[float] = []
        watching = asyncio.create_task(_watch(lags))
        began_s, cpu_s = time.perf_counter(), time.process_time()
        await rollout.run(assignment, None, 1.0)
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - began_s
        watching.cancel()
    assert len(collector.done()) == load.streams * load.rows
    return Carried(load, wire.frames, cpu_s, wall_s, max(lags))


def _made(load: Load) -> tuple[Any, Collector, list[list[str]]]:
    spec = JobSpec.model_validate(
        {
            "name": "job",
            "model": {"path": "made-up"},
            "dataset": {"path": "made-up.jsonl"},
            "rewards": [{"python": "rewards.py:one"}],
            "rollout": {"max_tokens": 1 << 20, "max_instances": load.streams},
        }
    )
    tokens = round(load.seconds * TOKENS_PER_S)
    prompt = tuple(range(20_000, 20_000 + PROMPT_TOKENS))
    samples = [
        Sample(f"1/{stream}/{row}", stream, prompt, row, tokens)
        for stream in range(load.streams)
        for row in range(load.rows)
    ]
    job = SimpleNamespace(
        id="job",
        spec=spec,
        objects=SimpleNamespace(url="memory:"),
        data=SimpleNamespace(stop_token_ids=[0]),
    )
    ids = [sample.id for sample in samples]
    starts = range(0, len(ids), load.rows)
    return job, Collector(samples), [ids[start : start + load.rows] for start in starts]


async def _nothing(_: object) -> None:
    pass


async def _watch(lags: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + 0.02
        await asyncio.sleep(0.02)
        lags.append(loop.time() - due_s)


def allow_many_sockets() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
