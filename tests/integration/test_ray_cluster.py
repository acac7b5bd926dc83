"""A Ray cluster that is there before us: the agent gets in by the job API, jobs run, nodes go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import rlhfless
from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.local_host import LocalOptions
from controller.platforms.ray_cluster import RayCluster
from controller.platforms.ray_jobs import ensure_agent
from controller.platforms.ray_serve import RayServePlatform
from controller.platforms.ray_settings import RaySettings
from controller.service.hosts import TOKEN_VARIABLE, Host, Wanted, open_host
from rlhfless.errors import TransientError, UserError
from rlhfless.messages import FUNCTION_NAMES, Drain, Progress, RolloutDone
from tests.support.processes import frames_of, rollout, until
from tests.support.ray_clusters import OutsideRay, outside_ray
from tests.support.runs import Result, Workplace, assert_same

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROBES = dict.fromkeys(FUNCTION_NAMES, "tests.apps.probe:create")
TOKEN = "the agent's token"


@pytest.fixture(scope="module")
def outside() -> Iterator[OutsideRay]:
    with outside_ray() as cluster, pytest.MonkeyPatch.context() as patching:
        patching.setenv("RAY_AUTH_TOKEN", cluster.token)
        yield cluster


def settings_of(outside: OutsideRay, **resources: Any) -> RaySettings:
    return RaySettings.model_validate(
        {
            "platform": "ray",
            "release": "demo",
            "ray": {"address": outside.address, "serveUrl": outside.serve_url},
            "functions": {
                name: {"maxInstances": 2, "scaleDownDelay": "60s", "resources": resources}
                for name in FUNCTION_NAMES
            },
        }
    )


@asynccontextmanager
async def platform_on(
    outside: OutsideRay, **resources: Any
) -> AsyncGenerator[RayServePlatform, None]:
    settings = settings_of(outside, **resources)
    async with RayCluster(outside.serve_url, "demo", TOKEN) as cluster:
        await ensure_agent(cluster, outside.address)
        async with RayServePlatform(
            [Deployment("rollout")],
            job="job-1",
            ledger=Ledger(),
            cluster=cluster,
            settings=settings,
            apps=PROBES,
        ) as platform:
            yield platform


def test_a_job_from_the_command_line(
    place: Workplace, undisturbed: Result, outside: OutsideRay
) -> None:
    there = ["--ray-address", outside.address, "--ray-serve-url", outside.serve_url]
    ended = place.start_job("run", "--platform", "ray", *there).ended(300)
    assert ended.code == 0, ended.explained()
    assert_same(place.result(), undisturbed)
    place.assert_nothing_left()


def test_a_service_runs_its_jobs_there(
    outside: OutsideRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "platform.yaml"
    file.write_text(yaml.safe_dump(settings_of(outside).model_dump(by_alias=True)))
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)

    def wanted(job: str) -> Wanted:
        return Wanted(job=job, deployments=[Deployment("reward")], ledger=Ledger(), kinds={})

    async def run() -> None:
        async with open_host(str(file), "", LocalOptions()) as host:
            async with host.platform(wanted("job-1")) as platform:
                await platform.scale("reward", 1)
                await until(lambda: host.stats() == {("reward", "idle"): 1}, 60)
            assert host.stats() == {}
            await _left_by_a_crash(host, wanted("job-2"))

    asyncio.run(run())


async def _left_by_a_crash(host: Host, wanted: Wanted) -> None:
    """One controller has died; the next takes over what it left, or sweeps it."""
    first = host.platform(wanted)
    await first.__aenter__()

    async def live() -> set[str]:
        return {"job-2"}

    async def none() -> set[str]:
        return set()

    assert await host.sweep(live) == 0
    async with host.platform(wanted):  # takes it over, and removes it at its end
        pass
    assert await host.sweep(none) == 0
    second = host.platform(wanted)
    await second.__aenter__()
    assert await host.sweep(none) == 1
    await second.__aexit__(None, None, None)
    await first.__aexit__(None, None, None)


def test_a_node_that_is_to_go_gives_its_work_back(outside: OutsideRay) -> None:
    node = outside.add_node("spot")

    async def run() -> None:
        async with platform_on(outside, custom={"spot": 1}) as platform:
            frames: list[object] = []

            async def call() -> None:
                async for frame in platform.invoke(rollout("slow:0.01")):
                    frames.append(frame)  # noqa: PERF401

            task = asyncio.create_task(call())
            await until(lambda: any(isinstance(f, Progress) for f in frames), 60)
            await asyncio.to_thread(outside.drain, node)
            await task
            assert any(isinstance(f, Drain) for f in frames)
            assert frames[-1] == RolloutDone(unfinished=[0])

    asyncio.run(run())
    outside.kill_last_node()


def test_a_node_that_is_lost_fails_its_calls(outside: OutsideRay) -> None:
    outside.add_node("gone")

    async def run() -> None:
        async with platform_on(outside, custom={"gone": 1}) as platform:
            frames: list[object] = []

            async def call() -> None:
                async for frame in platform.invoke(rollout("slow:0.01")):
                    frames.append(frame)  # noqa: PERF401

            task = asyncio.create_task(call())
            await until(lambda: any(isinstance(f, Progress) for f in frames), 60)
            await asyncio.to_thread(outside.kill_last_node)
            with pytest.raises(TransientError):
                await task
            again = asyncio.create_task(frames_of(platform, rollout()))
            await asyncio.to_thread(outside.add_node, "gone")
            assert len(await again) == 3

    asyncio.run(run())


def test_another_release_of_ours_is_told(
    outside: OutsideRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with RayCluster(outside.serve_url, "demo", TOKEN) as cluster:
            await ensure_agent(cluster, outside.address)
            monkeypatch.setattr(rlhfless, "__version__", "9.9.9")
            with pytest.raises(UserError, match=r"Ray's nodes have rlhfless .* this is 9\.9\.9"):
                await ensure_agent(cluster, outside.address)

    asyncio.run(run())


def test_another_token_is_given_to_the_agent(outside: OutsideRay) -> None:
    async def run() -> None:
        async with RayCluster(outside.serve_url, "demo", "a new token") as cluster:
            await ensure_agent(cluster, outside.address)
            assert await cluster.admits()
        async with RayCluster(outside.serve_url, "demo", TOKEN) as cluster:
            with pytest.raises(UserError, match="another token"):
                await ensure_agent(cluster, "")

    asyncio.run(run())


def test_a_cluster_that_does_not_know_us(
    outside: OutsideRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another")

    async def run() -> None:
        async with RayCluster(outside.serve_url, "unknown", TOKEN) as cluster:
            with pytest.raises(UserError, match="Ray asks for its token"):
                await ensure_agent(cluster, outside.address)

    asyncio.run(run())
