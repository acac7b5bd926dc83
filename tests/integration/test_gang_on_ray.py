"""Functions on Knative, and training of several workers on a Ray cluster beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.knative_settings import Gang, KnativeSettings
from controller.platforms.local_host import LocalOptions
from controller.service.hosts import TOKEN_VARIABLE, Host, JobPlatform, Wanted, open_host
from rlhfless.errors import TransientError
from rlhfless.messages import TrainDone
from tests.support.knative_cluster import TOKEN
from tests.support.knative_platforms import kubeconfig, settings, world
from tests.support.processes import frames_of, rollout
from tests.support.ray_clusters import OutsideRay, outside_ray
from tests.support.training import Job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def outside() -> Iterator[OutsideRay]:
    with outside_ray() as cluster, pytest.MonkeyPatch.context() as patching:
        patching.setenv("RAY_AUTH_TOKEN", cluster.token)
        yield cluster


def beside(outside: OutsideRay) -> KnativeSettings:
    there = {"address": outside.address, "serveUrl": outside.serve_url}
    return settings().model_copy(update={"training": Gang(gang="ray"), "ray": there})


async def entered(stack: AsyncExitStack, host: Host, wanted: Wanted) -> JobPlatform:
    """As soon as Ray's own agents are up, which its dashboard is before."""
    for _ in range(30):
        try:
            return await stack.enter_async_context(host.platform(wanted))
        except TransientError:
            await asyncio.sleep(1)
    raise AssertionError("Ray takes no jobs")


def test_training_is_on_ray_and_the_rest_on_knative(
    tmp_path: Path, tiny_model_dir: Path, outside: OutsideRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    file, job = tmp_path / "platform.yaml", Job(tmp_path / "store", tiny_model_dir)
    file.write_text(beside(outside).model_dump_json(by_alias=True))
    spread = Wanted(
        job="job-1",
        deployments=[Deployment("rollout"), Deployment("training", workers=2)],
        ledger=Ledger(workers={"training": 2}),
        kinds={},
    )

    async def run() -> None:
        async with world(tmp_path / "cluster") as place:
            (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig(place.api)))
            async with open_host(str(file), str(tmp_path / "logs"), LocalOptions()) as host:
                async with AsyncExitStack() as stack:
                    platform = await entered(stack, host, spread)
                    assert len(await frames_of(platform, rollout())) == 3
                    for parent in range(2):
                        frames = await frames_of(platform, job.request(parent))
                        assert isinstance(frames[-1], TrainDone)
                        assert frames[-1].version == parent + 1
                    on_knative = {pod.name for pod in place.cluster.pods}
                    where = {i.function: i.id in on_knative for i in platform.instances()}
                    assert where == {"rollout": True, "training": False}
                assert host.stats() == {}
                assert not any(place.api.store.objects.values())

    asyncio.run(run())
