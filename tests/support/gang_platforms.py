"""A platform of gangs over the stand-ins of Kubernetes and Kueue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.gang import GangPlatform
from rlhfless.messages import AnyFrame
from tests.support.gang_cluster import GangCluster
from tests.support.knative_cluster import TOKEN
from tests.support.knative_platforms import World, settings, with_gangs, world
from tests.support.kube_api import Object
from tests.support.processes import frames_of, train, until

TWO = Deployment("training", workers=2)


@dataclass(frozen=True)
class Place:
    """``folder``: where calls' results go."""

    world: World
    gangs: GangCluster
    folder: Path

    def platform(
        self, deployment: Deployment = TWO, job: str = "job-1", ledger: Ledger | None = None
    ) -> GangPlatform:
        return GangPlatform(
            deployment,
            job=job,
            ledger=ledger or Ledger(workers={"training": deployment.workers}),
            kube=self.world.kube,
            settings=self.world.settings,
            token=TOKEN,
        )

    def all(self, key: tuple[str, str, str]) -> list[Object]:
        return self.world.api.store.all(key)

    def call(self, platform: GangPlatform, name: str, behaviour: str = "echo") -> Any:
        return frames_of(platform, train(self.folder, name, behaviour))  # type: ignore[arg-type]

    async def begun(self, platform: GangPlatform) -> asyncio.Task[list[AnyFrame]]:
        """A call that goes on until it is ended, and is at work."""
        task = asyncio.create_task(self.call(platform, "0/train/slow", "slow:0.02"))
        await until(lambda: [i.state for i in platform.instances()] == ["busy"])
        return task


@contextlib.asynccontextmanager
async def gangs(
    folder: Path,
    *,
    quota: int = 2,
    idle_s: int = 60,
    app: str | None = "create",
    queue: str = "gangs",
    deadline: str = "20s",
) -> AsyncGenerator[Place, None]:
    """A cluster whose LocalQueue ``gangs`` has room for ``quota`` pods; jobs name ``queue``."""
    plain = settings(function={"scaleDownDelay": f"{idle_s}s"}, progressDeadline=deadline)
    told = with_gangs(plain, queue)
    async with (
        world(folder / "cluster", app=app, told=told) as place,
        GangCluster(place.cluster, {"gangs": quota}).running() as running,
    ):
        yield Place(place, running, folder)
