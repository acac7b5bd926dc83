"""What the job store costs the controller and Redis: finished samples, written as they end.

A ``redis-server`` of our own and the store as a replica of the service uses it, with its fence.
Samples come at the pace of a rollout, a few at a time, from as many actors as it has.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from redis.asyncio import Redis

from controller.collector import FinishedSample
from controller.fencing import Fence, fence_key
from controller.gathering import Gathered
from controller.job_store import JobStore
from controller.redis_server import open_redis

Write = Callable[[Sequence[FinishedSample]], Awaitable[None]]


@dataclass(frozen=True)
class Endings:
    """``writes`` of ``samples`` each, of ``tokens`` each, in ``seconds``."""

    writes: int
    samples: float
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Kept:
    """CPU seconds of the controller's process and of Redis; ``late_s``: the longest that a write
    was awaited."""

    endings: Endings
    cpu_s: float
    redis_s: float
    commands: int
    num_bytes: int
    late_s: float


def keep(folder: str, endings: Endings, every_s: float | None) -> Kept:
    """``every_s``: as a step gathers them; None: each is written by itself."""
    return asyncio.run(_keep(folder, endings, every_s))


async def _keep(folder: str, endings: Endings, every_s: float | None) -> Kept:
    rng = random.Random(0)
    made, number = [], 0.0
    for write in range(endings.writes):
        number += endings.samples
        count, number = int(number), number - int(number)
        made.append([_sample(rng, f"{write}/{n}", endings.tokens) for n in range(count)])
    delays = sorted(rng.uniform(0, endings.seconds) for _ in made)
    async with open_redis(folder) as redis:
        fence = Fence(1, "holder")
        await redis.set(fence_key("job"), str(fence))
        store = JobStore(redis, "job", fence)
        write: Write = partial(store.add_samples, 0)
        if every_s is not None:
            write = Gathered(write, every_s=every_s).add
        before = await _told(redis)
        waits: list[float] = []
        cpu_s = time.process_time()
        async with asyncio.TaskGroup() as group:
            for delay, samples in zip(delays, made, strict=True):
                group.create_task(_write(delay, samples, write, waits))
        cpu_s = time.process_time() - cpu_s
        after = await _told(redis)
        kept = (await store.step_journal(0)).samples
        assert len(kept) == sum(map(len, made))
    redis_s, commands, num_bytes = (b - a for a, b in zip(before, after, strict=True))
    return Kept(endings, cpu_s, redis_s, round(commands), round(num_bytes), max(waits))


async def _write(
    delay_s: float, samples: list[FinishedSample], write: Write, waits: list[float]
) -> None:
    await asyncio.sleep(delay_s)
    began_s = time.perf_counter()
    await write(samples)
    waits.append(time.perf_counter() - began_s)


async def _told(redis: Redis) -> tuple[float, float, float]:
    told = await redis.info("all")
    return (
        told["used_cpu_sys"] + told["used_cpu_user"],
        told["total_commands_processed"],
        told["total_net_input_bytes"] + told["total_net_output_bytes"],
    )


def _sample(rng: random.Random, name: str, tokens: int) -> FinishedSample:
    return FinishedSample(
        id=name,
        tokens=[rng.randrange(150_000) for _ in range(tokens)],
        logprobs=bytes(4 * tokens),
        reason="stop",
        versions=[1, tokens],
    )
