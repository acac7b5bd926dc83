"""A whole job on Knative: the orchestrator as ever, its functions in pods of the stand-in."""

from __future__ import annotations

import asyncio

import pytest

from controller.deployments import deployments
from controller.execution import Execution, execute
from controller.job import Event
from controller.job_store import JobStore
from controller.known import Known
from controller.ledger import Ledger
from controller.orchestrator import Outcome
from controller.redis_server import open_redis
from rlhfless.objects import ObjectStore
from rlhfless.spec_file import dump_spec, load_spec
from tests.support.given_cluster import only_standin
from tests.support.knative_platforms import World, settings, world
from tests.support.runs import STEPS, Workplace

pytestmark = [pytest.mark.slow, only_standin("a job's files are of this machine")]


def test_a_job_whose_rollout_pod_is_preempted(place: Workplace) -> None:
    """Its samples go on elsewhere; the job ends, and leaves nothing in the cluster."""

    async def run() -> None:
        told = settings(function={"scaleDownDelay": "60s"})
        async with world(place.folder / "cluster", app=None, told=told) as cluster:
            steps: list[Event] = []
            outcome = await run_job(place, cluster, steps)
            assert outcome.status == "succeeded"
            assert [event.data["record"].step for event in steps] == [*range(STEPS)]
            assert cluster.cluster.num_preempted == 1
            assert not any(cluster.api.store.objects.values())

    asyncio.run(run())


async def run_job(place: Workplace, cluster: World, steps: list[Event]) -> Outcome:
    spec = load_spec(str(place.job_file))
    ledger = Ledger()
    preempting: set[asyncio.Task[None]] = set()

    def observe(event: Event) -> None:
        if event.kind == "step":
            steps.append(event)
            if len(steps) == 1:
                preempting.add(asyncio.create_task(preempt_a_rollout(cluster)))

    async with (
        open_redis(str(place.tmp / "redis")) as redis,
        cluster.platform(*deployments(spec), ledger=ledger) as platform,
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
        await asyncio.gather(*preempting)
    return outcome


async def preempt_a_rollout(cluster: World) -> None:
    """As soon as one is at work."""
    async with asyncio.timeout(60):
        while True:
            for revision in cluster.cluster.revisions.values():
                for pod in revision.pods:
                    if "-rollout-" in pod.name and pod.calls and not pod.stopping:
                        cluster.cluster.preempt(pod.name)
                        return
            await asyncio.sleep(0.01)
