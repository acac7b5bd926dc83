"""The host whose jobs run on a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator

from controller.platforms.ray_cluster import RayCluster, collect
from controller.platforms.ray_jobs import ensure_agent
from controller.platforms.ray_serve import RayServePlatform
from controller.platforms.ray_settings import RaySettings, load_settings, serve_url
from controller.service.hosts import Live, Stats, Wanted


class RayHost:
    """Replicas of Ray Serve on a cluster that is there; each job's are its own. The agent in it is
    looked for whenever a job begins: the cluster may have been made anew since the last one."""

    def __init__(self, cluster: RayCluster, settings: RaySettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._platforms: set[RayServePlatform] = set()
        self._ensuring = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def platform(self, wanted: Wanted) -> AsyncGenerator[RayServePlatform, None]:
        async with self._ensuring:
            await ensure_agent(self._cluster, self._settings.ray.address)
        made = RayServePlatform(
            wanted.deployments,
            job=wanted.job,
            ledger=wanted.ledger,
            cluster=self._cluster,
            settings=self._settings,
        )
        self._platforms.add(made)
        try:
            async with made:
                yield made
        finally:
            self._platforms.discard(made)

    def stats(self) -> Stats:
        return Counter((i.function, i.state) for p in self._platforms for i in p.instances())

    async def sweep(self, live: Live) -> int:
        if await self._cluster.version() is None:  # nothing of ours is there, or nobody can tell
            return 0
        return len(await collect(self._cluster, live))


@contextlib.asynccontextmanager
async def open_ray_host(platform_file: str, token: str) -> AsyncGenerator[RayHost, None]:
    """``token``: of the agent; those of jobs come of it. Raises ``UserError`` for a file that is
    not in order. Whether the cluster answers is seen when a job begins."""
    async with ray_host(load_settings(platform_file), token) as host:
        yield host


@contextlib.asynccontextmanager
async def ray_host(settings: RaySettings, token: str) -> AsyncGenerator[RayHost, None]:
    """``token``: of the agent."""
    async with RayCluster(serve_url(settings.ray), settings.release, token) as cluster:
        yield RayHost(cluster, settings)
