"""Nothing outlives the controller of a local platform, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import (
    frames_of,
    home_of,
    marked,
    platform_of,
    rollout,
    wait_until_gone,
)

pytestmark = pytest.mark.slow


_CONTROLLER = """
    import asyncio, pathlib, sys
    from controller.platforms.base import Deployment
    from tests.support.processes import options, platform_of, rollout

    async def call(platform, behaviour):
        async for frame in platform.invoke(rollout(behaviour)):
            pass

    async def main(folder):
        deployment = Deployment("rollout", max_instances=3)
        async with platform_of(folder, deployment, settings=options(grace_s=1.0)) as platform:
            async with asyncio.TaskGroup() as group:
                for behaviour in ("slow:0.005", "deaf:600", "child"):
                    group.create_task(call(platform, behaviour))
                while sum(i.state == "busy" for i in platform.instances()) < 3:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)  # so that the probe has its child
                print(platform.host.home.path, flush=True)

    try:
        asyncio.run(main(pathlib.Path(sys.argv[1])))
    except KeyboardInterrupt:
        sys.exit(130)
"""


class Controller:
    """A process with a platform, three instances in calls, and a child of one of them."""

    def __init__(self, folder: Path) -> None:
        self._mark = f"RLHFLESS_TEST_MARK={folder}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_CONTROLLER), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"RLHFLESS_TEST_MARK": str(folder)},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        with self.process.stdout as output:
            self.home = output.readline().strip()
        self.others = set(self.marked()) - {self.process.pid}

    def marked(self) -> dict[int, str]:
        return marked(self._mark)

    def pids(self, word: str) -> list[int]:
        return [pid for pid, command in self.marked().items() if word in command]


@pytest.mark.parametrize(
    "end",
    [
        lambda c: os.kill(c.process.pid, signal.SIGKILL),
        lambda c: os.killpg(c.process.pid, signal.SIGINT),
        lambda c: os.killpg(c.process.pid, signal.SIGKILL),
    ],
    ids=["SIGKILL", "Ctrl-C", "SIGKILL of its group"],
)
def test_nothing_outlives_the_controller(tmp_path: Path, end: Callable[[Controller], None]) -> None:
    controller = Controller(tmp_path)
    # Guardian, zygote, three instances, and the child of one.
    assert len(controller.others) == 6, controller.marked()
    assert os.path.exists(controller.home)
    end(controller)
    controller.process.wait(timeout=60)
    wait_until_gone(controller.others)
    assert controller.marked() == {}
    give_up = time.monotonic() + 10
    while os.path.exists(controller.home) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not os.path.exists(controller.home)


def test_the_guardian_ends_instances_that_are_stopped(tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    for pid in controller.others - set(controller.pids("lifeline.py")):
        os.kill(pid, signal.SIGSTOP)  # none of them can see to its own end
    controller.process.kill()
    controller.process.wait()
    wait_until_gone(controller.others)


def test_instances_end_without_the_guardian_and_the_next_start_cleans_up(tmp_path: Path) -> None:
    controller = Controller(tmp_path / "first")
    (guardian,) = controller.pids("lifeline.py")
    os.kill(guardian, signal.SIGKILL)
    controller.process.kill()
    controller.process.wait()
    wait_until_gone(controller.others)
    assert os.path.exists(controller.home)  # nobody was left to remove it

    async def next_start() -> str:
        async with platform_of(tmp_path / "second") as platform:
            return home_of(platform)

    assert asyncio.run(next_start()) != controller.home
    assert not os.path.exists(controller.home)


def test_the_next_start_ends_what_nobody_else_could(tmp_path: Path) -> None:
    controller = Controller(tmp_path / "first")
    (guardian,) = controller.pids("lifeline.py")
    os.kill(guardian, signal.SIGKILL)
    left = controller.others - {guardian}
    for pid in left:
        os.kill(pid, signal.SIGSTOP)
    controller.process.kill()
    controller.process.wait()

    async def next_start() -> None:
        async with platform_of(tmp_path / "second"):
            wait_until_gone(left)

    asyncio.run(next_start())


def test_a_living_controllers_things_are_left_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path / "a") as a:
            await frames_of(a, rollout())
            async with platform_of(tmp_path / "b") as b:
                await frames_of(b, rollout())
            assert exists(home_of(a))
            await frames_of(a, rollout())

    asyncio.run(run())


def exists(path: str) -> bool:
    return os.path.exists(path)
