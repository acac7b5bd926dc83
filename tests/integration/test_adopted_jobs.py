"""A job that runs on another's instances computes what it would on its own, to the last bit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.deployments import deployments
from controller.execution import Execution, execute
from controller.job_store import JobStore
from controller.known import Known
from controller.ledger import Ledger
from controller.platforms.local import LocalPlatform
from controller.platforms.local_host import LocalHost
from controller.platforms.local_sharing import PROMISE_S
from controller.redis_server import open_redis
from rlhfless.objects import ObjectStore
from rlhfless.spec import JobSpec
from rlhfless.spec_file import dump_spec, load_spec
from tests.support.runs import Workplace

pytestmark = pytest.mark.slow


async def weights_of(
    job: str, spec: JobSpec, folder: Path, platform: LocalPlatform, ledger: Ledger
) -> bytes:
    """Run the job to its end; the final model."""
    async with open_redis(str(folder / job / "redis")) as redis:
        journal = JobStore(redis, job)
        await journal.create(dump_spec(spec))
        execution = Execution(
            id=job,
            spec=spec,
            platform=platform,
            ledger=ledger,
            journal=journal,
            objects=ObjectStore(str(folder / "store")),
            export_folder=str(folder / job / "weights"),
            observe=lambda _: None,
            keep_samples=lambda _: lambda _: None,
        )
        outcome = await execute(execution, Known())
    assert outcome.status == "succeeded"
    return (folder / job / "weights" / "model.safetensors").read_bytes()


def test_two_jobs_on_one_set_of_instances(tmp_path: Path, tiny_model_dir: Path) -> None:
    with Workplace(tmp_path / "place", tiny_model_dir) as place:
        place.change_job(
            evaluation=None,
            training={"steps": 2},
            # Nothing is let go meanwhile, so that there is something to take over.
            scheduling={"strategy": "custom", "early_release": False},
        )
        spec = load_spec(str(place.job_file))

        async def run() -> tuple[bytes, bytes]:
            books = Ledger(), Ledger()
            kinds = dict.fromkeys(spec.functions(), "alike")
            async with LocalHost(str(tmp_path / "logs")) as host:
                first, second = (
                    LocalPlatform(deployments(spec), ledger=ledger, host=host, kinds=kinds)
                    for ledger in books
                )
                weights = await weights_of("first", spec, tmp_path, first, books[0])
                num_started = host.num_started
                await asyncio.sleep(PROMISE_S)
                again = await weights_of("second", spec, tmp_path, second, books[1])
                assert host.num_started == num_started
                assert first.instances() == ()
            usage = books[1].usage(asyncio.get_running_loop().time())
            assert usage.keys() == set(spec.functions())
            assert all(used.cold_s == 0 < used.busy_s for used in usage.values())
            return weights, again

        one, other = asyncio.run(run())
        assert one == other
