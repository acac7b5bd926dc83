"""Several platforms as one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.platforms.base import Deployment
from controller.platforms.by_function import ByFunction
from rlhfless.errors import InternalError
from rlhfless.messages import SteerRequest
from tests.support.processes import call_info, frames_of, platform_of, rollout, train

pytestmark = pytest.mark.slow


def test_each_function_goes_to_its_platform(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            platform_of(tmp_path / "a", Deployment("rollout")) as first,
            platform_of(tmp_path / "b", Deployment("training")) as second,
        ):
            both = ByFunction({"rollout": first, "training": second})
            (tmp_path / "store").mkdir()
            assert len(await frames_of(both, rollout())) == 3
            assert len(await frames_of(both, train(tmp_path / "store", "0/train/0"))) == 1
            assert [i.function for i in first.instances()] == ["rollout"]
            assert [i.function for i in second.instances()] == ["training"]
            assert {i.function for i in both.instances()} == {"rollout", "training"}
            assert len(both.log_slices()) == 2
            change = SteerRequest(call=call_info("echo", name="s"), target="0/none", number=1)
            assert not await both.steer(change)
            both.bound("training", 0)
            with pytest.raises(InternalError, match="reward is not deployed"):
                await both.scale("reward", 1)
            await both.close()
            assert both.instances() == ()

    asyncio.run(run())
