"""Training instances of several workers, as the local platform runs them: whole groups or none."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import torch

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.local import LocalOptions, LocalPlatform
from functions.weights.tensors import pull
from rlhfless.errors import InternalError, TransientError, UserError
from rlhfless.messages import AnyFrame, GradientsDone, TrainDone, TrainRequest
from rlhfless.versions import versions
from tests.support.processes import lives, until
from tests.support.training import PPO, SETTINGS, Job, make_batch, new_trainer

pytestmark = pytest.mark.slow
CALM = msgspec.structs.replace(SETTINGS, epsilon=1e-4)
ENDLESS = msgspec.structs.replace(CALM, passes=100_000)


@asynccontextmanager
async def training(folder: Path, workers: int) -> AsyncGenerator[LocalPlatform]:
    deployment = Deployment("training", workers=workers)
    async with LocalPlatform(
        [deployment], ledger=Ledger(), folder=str(folder), options=LocalOptions()
    ) as platform:
        yield platform


async def called(platform: LocalPlatform, request: TrainRequest) -> TrainDone:
    frames: list[AnyFrame] = [frame async for frame in platform.invoke(request)]
    done = frames[-1]
    assert isinstance(done, TrainDone)
    return done


def workers_of(platform: LocalPlatform) -> dict[int, int]:
    """Process ids by rank, of the only instance."""
    (instance,) = platform._pools["training"].instances.values()
    assert instance.process is not None
    return workers_in_group(instance.process.pid)


def workers_in_group(leader: int) -> dict[int, int]:
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            group = os.getpgid(int(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if group == leader and name.startswith("rlhf-training-"):
            found[int(name.rpartition("-")[2])] = int(pid)
    return found


def assert_near(one: Job, other: Job, version: int) -> None:
    mine, theirs = (pull(job.store, job.name, version)[1] for job in (one, other))
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-5)


def assert_equal(one: Job, other: Job, version: int) -> None:
    mine, theirs = (pull(job.store, job.name, version)[1] for job in (one, other))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


def test_versions_and_metrics_are_those_of_one_worker(tmp_path: Path, tiny_model_dir: Path) -> None:
    alone, jobs = (
        Job(tmp_path / name, tiny_model_dir, algorithm=PPO, settings=CALM)
        for name in ("alone", "several")
    )
    expected = [
        alone.train(trainer, alone.request(parent))
        for trainer in [new_trainer()]
        for parent in range(2)
    ]

    async def run() -> None:
        async with training(tmp_path / "logs", 3) as platform:
            for parent in range(2):
                done = await called(platform, jobs.request(parent, checkpoint=parent == 0))
                assert done.version == parent + 1
                for name, value in expected[parent].metrics.items():
                    if not name.endswith("_s"):
                        assert done.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
            assert sorted(workers_of(platform)) == [0, 1, 2]
            repeat = await called(platform, jobs.request(0))
            assert repeat.version == 1

    asyncio.run(run())
    for version in (1, 2):
        assert_near(alone, jobs, version)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_ends_its_call_and_a_fresh_group_goes_on(
    tmp_path: Path, tiny_model_dir: Path, rank: int
) -> None:
    steady, killed = (
        Job(tmp_path / name, tiny_model_dir, settings=CALM) for name in ("steady", "killed")
    )

    async def run() -> None:
        async with training(tmp_path / "logs", 2) as platform:
            for job in (steady, killed):
                for parent in range(2):
                    await called(platform, job.request(parent, checkpoint=parent == 0))
            await called(platform, steady.request(2))

            before = workers_of(platform)
            killed.settings = ENDLESS
            call = asyncio.create_task(called(platform, killed.request(2, call="endless")))
            await asyncio.sleep(0.5)
            assert not call.done()
            os.kill(before[rank], signal.SIGKILL)
            words = "worker 1 of 2 ended: pid .* was killed by signal 9" if rank else "SIGKILL"
            with pytest.raises(TransientError, match=words):
                async with asyncio.timeout(30):
                    await call
            await until(lambda: not any(map(lives, before.values())))

            killed.settings = CALM
            done = await called(platform, killed.request(2))
            assert done.metrics["restore/replayed_versions"] == 1
            assert done.metrics["restore/diverged_versions"] == 0
            assert not set(workers_of(platform).values()) & set(before.values())

    asyncio.run(run())
    for version in (1, 2, 3):
        assert_equal(steady, killed, version)


def test_an_idle_group_that_loses_a_worker_is_replaced(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    job = Job(tmp_path / "store", tiny_model_dir, settings=CALM)

    async def run() -> None:
        async with training(tmp_path / "logs", 2) as platform:
            await called(platform, job.request(0))
            before = workers_of(platform)
            os.kill(before[1], signal.SIGKILL)
            await until(lambda: not any(map(lives, before.values())))
            assert (await called(platform, job.request(1))).version == 2

    asyncio.run(run())
    log = (tmp_path / "logs" / "training-1.log").read_text()
    assert "worker 0 ERROR" in log and "worker 1 of 2 ended" in log


def test_a_worker_that_is_told_to_go_drains_its_group(tmp_path: Path, tiny_model_dir: Path) -> None:
    """What a pod of a gang gets before its machine goes."""
    job = Job(tmp_path / "store", tiny_model_dir, settings=CALM)

    async def run() -> None:
        async with training(tmp_path / "logs", 2) as platform:
            await called(platform, job.request(0))
            before = workers_of(platform)
            job.settings = ENDLESS
            call = asyncio.create_task(called(platform, job.request(1, call="endless")))
            await asyncio.sleep(0.5)
            os.kill(before[1], signal.SIGTERM)
            with pytest.raises(TransientError, match="drain"):
                async with asyncio.timeout(30):
                    await call
            await until(lambda: not any(map(lives, before.values())))
            job.settings = CALM
            assert (await called(platform, job.request(1))).version == 2

    asyncio.run(run())
    assert versions(job.store, job.name) == [1, 2]


def test_errors_of_all_leave_the_group_as_it_is(tmp_path: Path, tiny_model_dir: Path) -> None:
    job = Job(tmp_path / "store", tiny_model_dir, settings=CALM)

    async def run() -> None:
        async with training(tmp_path / "logs", 2) as platform:
            await called(platform, job.request(0))
            before = workers_of(platform)
            batch = make_batch(1)
            batch.rewards[0] = float("nan")
            with pytest.raises(UserError, match="reward of sample 0"):
                await called(platform, job.request(1, batch=batch, call="nan"))
            job.settings = msgspec.structs.replace(CALM, learning_rate=1e38)
            with pytest.raises(InternalError, match="nothing was committed"):
                await called(platform, job.request(1, call="far"))
            job.settings = CALM
            request = job.request(1, call="lost")
            job.store.delete(request.batch.name)
            with pytest.raises(TransientError, match="batch"):
                await called(platform, request)
            done = await called(platform, job.request(1))
            assert done.metrics["restore/diverged_versions"] == 0
            assert workers_of(platform) == before

    asyncio.run(run())


def test_a_run_goes_on_with_another_number_of_workers(tmp_path: Path, tiny_model_dir: Path) -> None:
    """From a checkpoint, and by replaying what came after it."""
    alone, moved = (
        Job(tmp_path / name, tiny_model_dir, algorithm=PPO, settings=CALM)
        for name in ("alone", "moved")
    )
    trainer = new_trainer()
    for parent in range(4):
        alone.train(trainer, alone.request(parent))

    async def run() -> None:
        for workers, parents in ((2, (0, 1)), (3, (2,)), (1, (3,))):
            async with training(tmp_path / f"logs-{workers}", workers) as platform:
                for parent in parents:
                    done = await called(platform, moved.request(parent, checkpoint=parent == 0))
                assert done.version == parents[-1] + 1

    asyncio.run(run())
    for version in range(1, 5):
        assert_near(alone, moved, version)


def test_gradients_are_begun_ahead_by_all(tmp_path: Path, tiny_model_dir: Path) -> None:
    alone, job = (Job(tmp_path / name, tiny_model_dir, settings=CALM) for name in ("alone", "job"))
    alone.train(new_trainer(), alone.request(0))

    async def run() -> None:
        async with training(tmp_path / "logs", 2) as platform:
            request = job.request(0)
            batch = make_batch(0)
            for groups in ([1, 3], [0]):
                frames = [
                    f async for f in platform.invoke(job.gradients_request(request, batch, groups))
                ]
                assert isinstance(frames[-1], GradientsDone) and frames[-1].num_samples
            done = await called(platform, request)
            assert done.metrics["training/overlapped_share"] > 0

    asyncio.run(run())
    assert_near(alone, job, 1)
