"""Where a replica's jobs run their functions, as the operator's file says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.local_host import LocalOptions
from controller.platforms.local_logs import LogFiles
from controller.service.hosts import TOKEN_VARIABLE, KnativeHost, Wanted, open_host
from rlhfless.errors import UserError
from tests.support.knative_cluster import TOKEN
from tests.support.knative_platforms import kubeconfig, settings, world
from tests.support.processes import frames_of, options, rollout, until

pytestmark = pytest.mark.slow


def wanted(job: str = "job-1") -> Wanted:
    return Wanted(job=job, deployments=[Deployment("rollout")], ledger=Ledger(), kinds={})


def platform_file(folder: Path) -> str:
    file = folder / "platform.yaml"
    file.write_text(settings().model_dump_json(by_alias=True))
    return str(file)


def test_without_a_file_functions_run_here(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            open_host(None, str(tmp_path / "logs"), options()) as host,
            host.platform(wanted()) as platform,
        ):
            assert len(await frames_of(platform, rollout())) == 3
            assert host.stats() == {("rollout", "idle"): 1}
            assert len(platform.log_slices()) == 1

    asyncio.run(run())


def test_with_a_file_they_run_in_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            config = tmp_path / "config"
            config.write_text(yaml.safe_dump(kubeconfig(place.api)))
            monkeypatch.setenv("KUBECONFIG", str(config))
            monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
            logs = str(tmp_path / "logs")
            async with open_host(platform_file(tmp_path), logs, LocalOptions()) as host:
                async with host.platform(wanted()) as platform:
                    assert len(await frames_of(platform, rollout())) == 3
                    assert sum(host.stats().values()) == 1
                    (lives,) = place.cluster.logs.lives.values()
                    lives[0].say("hello")
                    await until(lambda: len(platform.log_slices()) == 1)
                assert host.stats() == {}
                left = place.platform(job="left")
                await left.__aenter__()

                async def live() -> set[str]:
                    return set()

                assert await host.sweep(live) == 1
                await left.close()

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    asyncio.run(run())


def test_a_pod_that_jobs_share_is_counted_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path, told=settings(function={"scaleDownDelay": "60s"})) as place:
            host = KnativeHost(
                place.kube, place.settings, TOKEN, LogFiles(str(tmp_path), keep=True)
            )
            both = [
                Wanted(
                    job=job,
                    deployments=[Deployment("reference")],
                    ledger=Ledger(),
                    kinds={"reference": ("ada", "m")},
                    together=frozenset({"reference"}),
                )
                for job in ("job-1", "job-2")
            ]
            async with host.platform(both[0]) as first, host.platform(both[1]) as second:
                await first.scale("reference", 1)
                await until(lambda: host.stats() == {("reference", "idle"): 1})
                await until(lambda: sum(i.share for i in first.instances()) == 0.5)
                await until(lambda: sum(i.share for i in second.instances()) == 0.5)

    asyncio.run(run())


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def opened(file: str) -> None:
        async with open_host(file, str(tmp_path / "logs"), LocalOptions()):
            pass

    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(UserError, match=TOKEN_VARIABLE):
        asyncio.run(opened(platform_file(tmp_path)))
    monkeypatch.setenv(TOKEN_VARIABLE, "t")
    with pytest.raises(UserError, match="cannot read"):
        asyncio.run(opened(str(tmp_path / "none.yaml")))
