"""Instances that cannot start, are stuck, or lose the zygote they are forked off."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from controller.platforms.base import Deployment
from rlhfless.errors import CapacityError, InternalError, TransientError
from rlhfless.messages import AnyFrame
from tests.support.processes import collect, frames_of, options, pid_in, platform_of, rollout, until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("zygote", [True, False], ids=["zygote", "fresh"])
def test_a_function_that_cannot_start_is_tried_a_few_times_and_explained(
    tmp_path: Path, zygote: bool
) -> None:
    async def run() -> None:
        settings = options(zygote=zygote, app="broken")
        async with platform_of(tmp_path, settings=settings) as platform:
            with pytest.raises(InternalError, match="could not start") as caught:
                await frames_of(platform, rollout())
            assert "No module named 'a_module_that_is_not_there'" in caught.value.detail
            assert platform.instances() == ()
            with pytest.raises(InternalError, match="could not start"):  # and again, no hang
                await frames_of(platform, rollout())

    asyncio.run(run())


def test_a_name_that_is_no_function_is_explained(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, settings=options(app="nothing")) as platform:
            with pytest.raises(InternalError, match="names no function"):
                await frames_of(platform, rollout())

    asyncio.run(run())


def test_a_function_that_does_not_get_ready_is_given_up(tmp_path: Path) -> None:
    async def run() -> None:
        settings = options(app="stuck", start_timeout_s=0.2)
        async with platform_of(tmp_path, settings=settings) as platform:
            with pytest.raises(CapacityError, match=r"was not ready within 0\.2 s"):
                await frames_of(platform, rollout())
            await until(lambda: platform.instances() == ())

    asyncio.run(run())


def test_closing_ends_instances_that_are_starting(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, settings=options(app="stuck")) as platform:
            await platform.scale("rollout", 1)
            waiting = asyncio.create_task(frames_of(platform, rollout()))
            instances = platform._pools["rollout"].instances
            await until(lambda: all(i.process is not None for i in instances.values()))
        with pytest.raises(CapacityError, match="closing"):
            await waiting

    asyncio.run(run())


def test_a_killed_zygote_is_replaced_and_its_instances_live_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("rollout", max_instances=2)) as platform:
            frames: list[AnyFrame] = []
            call = asyncio.create_task(collect(platform, frames, "slow:0.005"))
            await until(lambda: bool(frames))
            zygote = platform.host.zygote._zygote
            assert zygote is not None
            os.kill(zygote._child.pid, signal.SIGKILL)
            await frames_of(platform, rollout())  # needs another instance, so another zygote
            seen = len(frames)
            await until(lambda: len(frames) > seen + 3)
            os.kill(pid_in(frames), signal.SIGKILL)  # still watched, if not by its parent
            with pytest.raises(TransientError, match="rollout-1"):
                await call

    asyncio.run(run())
