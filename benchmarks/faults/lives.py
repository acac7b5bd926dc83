"""Short jobs, one after another: submitted, watched, some of them paused or cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from benchmarks.faults.place import TENANTS, VARIANTS, Place, spec
from benchmarks.faults.weights import Weights
from rlhfless import AsyncClient, rest
from rlhfless.errors import (
    CapacityError,
    ConflictError,
    RlhflessError,
    TransientError,
)

Fate = Literal["left alone", "cancelled", "paused"]
T = TypeVar("T")

CUT_AFTER = (1, 6)
"""Events after which a watcher hangs up, by itself, and comes back with the last id."""


@dataclass
class Life:
    """One job. ``seen``: ids of the events that its watcher was told, in order."""

    name: str
    tenant: str
    variant: int
    fate: Fate
    job: str | None = None
    seen: list[str] = field(default_factory=list)
    cuts: int = 0
    submitted_s: float = 0.0
    asked_to_cancel: bool = False
    wrong: list[str] = field(default_factory=list)
    """What went wrong with it, in words."""


class Lives:
    """Keeps ``count`` jobs open until it is told to make no more."""

    def __init__(self, place: Place, count: int, weights: Weights, rng: random.Random) -> None:
        self._place = place
        self._weights = weights
        self._count = count
        self._rng = rng
        self.all: list[Life] = []
        self.ended = 0
        self._stop = asyncio.Event()

    def no_more(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Until told to make no more and all have ended; cancel it to give up on the rest."""
        async with contextlib.AsyncExitStack() as stack:
            clients = {
                tenant: await stack.enter_async_context(self._place.client(tenant))
                for tenant in TENANTS
            }
            async with asyncio.TaskGroup() as group:
                for _ in range(self._count):
                    group.create_task(self._lane(clients))

    async def _lane(self, clients: dict[str, AsyncClient]) -> None:
        while not self._stop.is_set():
            number, rng = len(self.all), self._rng
            life = Life(
                name=f"job-{number}",
                tenant=TENANTS[number % len(TENANTS)],
                variant=rng.randrange(VARIANTS),
                fate=rng.choices(["left alone", "cancelled", "paused"], [6, 1, 2])[0],  # type: ignore[arg-type]
            )
            self.all.append(life)
            try:
                await self._lived(life, clients[life.tenant])
            except RlhflessError as error:
                life.wrong.append(f"a client was refused: {type(error).__name__}: {error.detail}")
            self.ended += 1

    async def _lived(self, life: Life, client: AsyncClient) -> None:
        life.submitted_s = asyncio.get_running_loop().time()
        job = await client.jobs.submit(spec(life.name, life.variant))
        life.job = job.id
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watched(life, client, job.id))
            steering = group.create_task(self._steered(life, client, job.id))
            await watching
            steering.cancel()
        ended = await client.jobs.get(job.id)
        life.wrong += await asyncio.to_thread(self._weights.checked, ended, life.variant)

    async def _watched(self, life: Life, client: AsyncClient, job: str) -> None:
        """Every event until the job has ended."""
        while True:
            hang_up_after = self._rng.randint(*CUT_AFTER)
            events = client.jobs.events(job, after=life.seen[-1] if life.seen else None)
            async with contextlib.aclosing(events) as told:  # type: ignore[type-var]
                async for event in told:
                    life.seen.append(event.id)
                    hang_up_after -= 1
                    if hang_up_after == 0:
                        break
                else:
                    return
            life.cuts += 1

    async def _steered(self, life: Life, client: AsyncClient, job: str) -> None:
        if life.fate == "left alone":
            return
        try:
            await asyncio.sleep(self._rng.uniform(0, 20))
            if life.fate == "cancelled":
                life.asked_to_cancel = True
                await _tried(lambda: client.jobs.cancel(job))
                return
            await _tried(lambda: client.jobs.pause(job))
            await asyncio.sleep(self._rng.uniform(0, 6))
            await _tried(lambda: client.jobs.resume(job))
        except ConflictError:
            return  # it has ended before


async def _tried(ask: Callable[[], Awaitable[rest.Job]]) -> rest.Job:
    while True:
        try:
            return await ask()
        except (TransientError, CapacityError):
            await asyncio.sleep(1.0)
