"""A whole job of a host on Knative, whose training is spread over two nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.deployments import deployments, new_ledger
from controller.execution import Execution, execute
from controller.job import Event
from controller.job_store import JobStore
from controller.known import Known
from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.local_logs import LogFiles
from controller.redis_server import open_redis
from controller.service.hosts import JobPlatform, KnativeHost, Wanted
from controller.service.kinds import kinds
from rlhfless.errors import TransientError
from rlhfless.objects import ObjectStore
from rlhfless.spec_file import dump_spec, load_spec
from tests.support.gang_platforms import TWO, Place, gangs
from tests.support.knative_cluster import TOKEN
from tests.support.processes import frames_of, rollout, train, until
from tests.support.runs import STEPS, Result, Workplace

pytestmark = pytest.mark.slow


def host_of(cluster: Place, folder: Path) -> KnativeHost:
    files = LogFiles(str(folder / "logs"), keep=True)
    files.make_folder()
    return KnativeHost(cluster.world.kube, cluster.world.settings, TOKEN, files)


def test_what_ranks_say_is_in_the_jobs_log(tmp_path: Path) -> None:
    async def run() -> None:
        async with gangs(tmp_path) as cluster:
            wanted = Wanted(
                job="job-1",
                deployments=[Deployment("rollout"), TWO],
                ledger=Ledger(),
                kinds={},
            )
            host = host_of(cluster, tmp_path)
            async with host.platform(wanted) as platform:
                assert len(await frames_of(platform, rollout())) == 3
                with pytest.raises(TransientError):
                    await frames_of(platform, train(tmp_path, "0/train/0", "exit"))
                await until(lambda: "goodbye from the probe" in said(platform))
                assert host.stats()["rollout", "idle"] == 1

    asyncio.run(run())


def said(platform: JobPlatform) -> str:
    return "".join(
        Path(part.path).read_text() for part in platform.log_slices() if Path(part.path).exists()
    )


def test_training_on_two_nodes_beside_functions_on_knative(
    place: Workplace, undisturbed: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns what one worker does, and leaves nothing in the cluster."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # the nodes are one machine
    steps: list[Event] = []
    spec = load_spec(str(place.job_file))
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"workers": 2})})

    def observe(event: Event) -> None:
        if event.kind == "step":
            steps.append(event)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ledger = new_ledger(deployments(spec))
        async with gangs(place.folder, app=None, deadline="200s") as cluster:
            world = cluster.world
            host = host_of(cluster, place.folder)
            wanted = Wanted(
                job="job-1",
                deployments=deployments(spec),
                ledger=ledger,
                kinds=kinds("ada", spec),
            )
            async with (
                open_redis(str(place.tmp / "redis")) as redis,
                host.platform(wanted) as platform,
            ):
                journal = JobStore(redis, "job-1")
                await journal.create(dump_spec(spec))
                execution = Execution(
                    id="job-1",
                    spec=spec,
                    platform=platform,
                    ledger=ledger,
                    journal=journal,
                    objects=ObjectStore(str(place.folder / "store")),
                    export_folder=None,
                    observe=observe,
                    keep_samples=lambda _: lambda _: None,
                )
                outcome = await execute(execution, Known())
                assert outcome.status == "succeeded"
                assert cluster.gangs.num_admitted == 1
                assert len(cluster.gangs.pods) == 2
            assert host.stats() == {}
            assert not any(world.api.store.objects.values())
        usage = ledger.usage(loop.time())
        assert usage["training"].busy_s > 0 and usage["rollout"].busy_s > 0

    asyncio.run(run())
    assert [event.data["record"].step for event in steps] == [*range(STEPS)]
    told, expected = steps[0].data["record"].metrics, undisturbed.metrics[0]
    for name in ("reward/mean", "response_length/mean", "policy/loss", "policy/grad_norm"):
        assert told[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name
