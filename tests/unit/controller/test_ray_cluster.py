"""A Ray cluster whose agent is a stand-in, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx
import msgspec
import pytest

from controller.ledger import Ledger
from controller.platforms import ray_cluster, ray_jobs
from controller.platforms.base import Deployment
from controller.platforms.ray_cluster import RayCluster
from controller.platforms.ray_jobs import ensure_agent
from controller.platforms.ray_serve import RayServePlatform
from controller.platforms.ray_settings import settings_of_run
from rlhfless.errors import CapacityError
from rlhfless.ray_apps import RayApp, RayAppState, RayReplica, RayState
from simulator import clock

URL = "http://ray:8000"
DASHBOARD = "http://ray:8265"


def run(work: Coroutine[Any, Any, None]) -> None:
    clock.run(work)


class Agent:
    """Has an application as it is told, with a ready replica for each that shall be warm.
    ``answer_s``: how long it takes; ``refuses``: changes that it refuses still."""

    def __init__(self) -> None:
        self.apps: dict[str, RayApp] = {}
        self.answer_s = 0.0
        self.refuses = 0
        self.ready = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self.answer_s)
        if request.method == "PUT":
            if self.refuses:
                self.refuses -= 1
                return httpx.Response(503)
            app = msgspec.json.decode(request.content, type=RayApp)
            self.apps[app.name] = app
            self.ready = max(self.ready, app.warm)
            return httpx.Response(204)
        if request.method == "DELETE":
            self.apps.pop(request.url.path.rpartition("/")[2], None)
            return httpx.Response(204)
        return httpx.Response(200, content=msgspec.json.encode(self.state()))

    def state(self) -> RayState:
        replicas = [RayReplica(id=str(i), phase="ready") for i in range(self.ready)]
        apps = [
            RayAppState(name=app.name, job=app.job, holder=app.holder, replicas=replicas)
            for app in self.apps.values()
        ]
        return RayState(version="1", ray_version="2", apps=apps)

    def cluster(self) -> RayCluster:
        made = RayCluster(URL, "demo", "token")
        made.client = httpx.AsyncClient(transport=httpx.MockTransport(self))
        return made


def platform(cluster: RayCluster) -> RayServePlatform:
    wanted = [Deployment("rollout", max_instances=4)]
    settings = settings_of_run(wanted, address=DASHBOARD, serve=URL, release="demo")
    return RayServePlatform(
        wanted, job="job-1", ledger=Ledger(), cluster=cluster, settings=settings
    )


def test_silence_counts_from_when_somebody_listens() -> None:
    """Between two jobs nobody asks the cluster anything."""

    async def go() -> None:
        agent = Agent()
        async with agent.cluster() as cluster:
            told: list[RayState] = []
            async with cluster.following(told.append):
                await asyncio.sleep(1)
            await asyncio.sleep(10 * ray_cluster.LOST_S)
            agent.answer_s = 5.0
            async with cluster.following(told.append):
                await asyncio.sleep(2)
                assert cluster.silent_s == pytest.approx(2)
                await asyncio.sleep(20)
                assert cluster.silent_s < 10
                agent.answer_s = 1000.0
                await asyncio.sleep(3 * ray_cluster.LOST_S)
                assert cluster.silent_s > ray_cluster.LOST_S

    run(go())


def test_a_change_that_did_not_get_through_is_told_again() -> None:
    """Else replicas that nobody needs would stay until the job ends."""

    async def go() -> None:
        agent = Agent()
        async with agent.cluster() as cluster, platform(cluster) as under:
            (name,) = agent.apps
            agent.refuses = 2
            await under.scale("rollout", 3)
            await asyncio.sleep(1.2)
            assert agent.refuses == 0
            await asyncio.sleep(0.7)
            assert agent.ready == 3
            agent.refuses = 2
            await asyncio.sleep(5)
            assert agent.apps[name].warm == 0

    run(go())


def test_an_agent_that_cannot_be_seen_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        async def answer(request: httpx.Request) -> httpx.Response:
            if request.url.port == 8000:
                return httpx.Response(404)
            told = {"ray_version": "2.53.0", "status": "SUCCEEDED"}
            return httpx.Response(200, json=told)

        cluster = RayCluster(URL, "demo", "token")
        cluster.client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        monkeypatch.setattr(ray_jobs, "_ray_token", str)
        async with cluster:
            with pytest.raises(CapacityError, match="nobody answers for it at http://ray:8000"):
                await ensure_agent(cluster, DASHBOARD)

    run(go())
