"""The training function over nodes: ranks in pods of a gang, which find each other and talk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
import torch

from controller.platforms.gang import GangPlatform
from functions.weights.tensors import pull
from rlhfless.errors import TransientError
from rlhfless.messages import TrainDone, TrainRequest
from tests.support.gang_platforms import gangs
from tests.support.training import SETTINGS, Job, new_trainer

pytestmark = pytest.mark.slow
CALM = msgspec.structs.replace(SETTINGS, epsilon=1e-4)
ENDLESS = msgspec.structs.replace(CALM, passes=100_000)


async def called(platform: GangPlatform, request: TrainRequest) -> TrainDone:
    frames = [frame async for frame in platform.invoke(request)]
    done = frames[-1]
    assert isinstance(done, TrainDone)
    return done


@pytest.mark.parametrize("index", [0, 1], ids=["leader", "follower"])
def test_two_nodes_learn_what_one_worker_does_also_when_one_dies_in_an_update(
    tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # the nodes are one machine
    alone, spread = (
        Job(tmp_path / name, tiny_model_dir, settings=CALM) for name in ("alone", "spread")
    )
    trainer = new_trainer()
    for parent in range(3):
        alone.train(trainer, alone.request(parent))

    async def run() -> None:
        async with (
            gangs(tmp_path, app=None, deadline="150s") as place,
            place.platform() as platform,
        ):
            for parent in range(2):
                await called(platform, spread.request(parent, checkpoint=parent == 0))
            before = [pod.process for pod in place.gangs.pods]
            assert len(before) == 2
            spread.settings = ENDLESS
            call = asyncio.create_task(called(platform, spread.request(2, call="endless")))
            await asyncio.sleep(0.5)
            assert not call.done()
            place.gangs.kill(place.gangs.pod(index))
            with pytest.raises(TransientError):
                await call
            spread.settings = CALM
            done = await called(platform, spread.request(2))
            assert done.version == 3
            assert done.metrics["restore/replayed_versions"] == 1
            assert all(process is not None and process.returncode is not None for process in before)
            assert place.gangs.num_admitted == 2

    asyncio.run(run())
    for version in (1, 2, 3):
        mine, theirs = (pull(job.store, job.name, version)[1] for job in (alone, spread))
        assert mine.keys() == theirs.keys()
        for name, tensor in mine.items():
            torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-5)
