"""The local platform when things die, hang, refuse or cannot start; when its controller dies."""

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

import httpx
import pytest

from controller.platforms.base import Deployment
from controller.platforms.local import LocalPlatform
from controller.platforms.local_instance import LocalInstance
from rlhfless.errors import (
    CapacityError,
    InternalError,
    RlhflessError,
    TransientError,
    UserError,
)
from rlhfless.messages import AnyFrame, Drain, Progress, RolloutDone, TrainDone
from tests.support.processes import (
    frames_of,
    home_of,
    lives,
    marked,
    options,
    platform_of,
    rollout,
    train,
    until,
    wait_until_gone,
)

pytestmark = pytest.mark.slow


async def collect(platform: LocalPlatform, frames: list[AnyFrame], behaviour: str) -> None:
    """Run a call to its end; its frames can be seen as they come."""
    async for frame in platform.invoke(rollout(behaviour)):
        frames.append(frame)  # noqa: PERF401


def pid_in(frames: list[AnyFrame]) -> int:
    (first, *_) = frames
    assert isinstance(first, Progress)
    return first.kv_tokens


@pytest.mark.parametrize("zygote", [True, False], ids=["zygote", "fresh"])
def test_a_killed_instance_fails_its_call_and_the_next_call_starts_another(
    tmp_path: Path, zygote: bool
) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, settings=options(zygote=zygote)) as platform:
            frames: list[AnyFrame] = []
            call = asyncio.create_task(collect(platform, frames, "slow:0.005"))
            await until(lambda: bool(frames))
            os.kill(pid_in(frames), signal.SIGKILL)
            with pytest.raises(TransientError, match=r"rollout-1 \(pid \d+\) ended.*SIGKILL"):
                await call
            await frames_of(platform, rollout())
            assert [i.id for i in platform.instances()] == ["rollout-2"]

    asyncio.run(run())


def test_an_instance_that_dies_is_noticed_though_its_child_holds_the_connection(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with platform_of(tmp_path) as platform:
            frames: list[AnyFrame] = []
            call = asyncio.create_task(collect(platform, frames, "child"))
            await until(lambda: bool(frames))
            os.kill(pid_in(frames), signal.SIGKILL)
            with pytest.raises(TransientError, match="SIGKILL"):
                await call
            (first, *_) = frames
            assert isinstance(first, Progress)
            await until(lambda: not lives(first.running))

    asyncio.run(run())


def test_an_idle_instance_that_dies_is_replaced_unseen(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path) as platform:
            await frames_of(platform, rollout())
            instance = next(iter(platform._pools["rollout"].instances.values()))
            assert instance.process is not None
            os.kill(instance.process.pid, signal.SIGKILL)
            await until(lambda: platform.instances() == ())
            await frames_of(platform, rollout())

    asyncio.run(run())


def test_a_crash_is_told_with_exit_code_and_last_words(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path) as platform:
            with pytest.raises(TransientError, match="exit code 7") as caught:
                await frames_of(platform, rollout("exit"))
            assert "goodbye from the probe" in caught.value.detail

    asyncio.run(run())


@pytest.mark.parametrize(
    ("behaviour", "kind", "words"),
    [
        ("raise", InternalError, "ValueError: the handler is broken"),
        ("user", UserError, "this cannot work"),
        ("oom", CapacityError, "out of memory"),
        ("disk", CapacityError, "no space left"),
    ],
)
def test_what_a_handler_raises_is_raised_here(
    tmp_path: Path, behaviour: str, kind: type[RlhflessError], words: str
) -> None:
    async def run() -> None:
        async with platform_of(tmp_path) as platform:
            with pytest.raises(kind, match=words):
                await frames_of(platform, rollout(behaviour))
            await frames_of(platform, rollout())
            assert len(platform.instances()) == 1  # the instance is none the worse for it

    asyncio.run(run())


def test_an_instance_refuses_bytes_that_are_no_request(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path) as platform:
            await frames_of(platform, rollout())
            instance = next(iter(platform._pools["rollout"].instances.values()))
            with pytest.raises(Exception, match="no RolloutRequest"):
                await anext(instance.call("/v1/rollout", b"\xc1"))

    asyncio.run(run())


def test_preemption_drains_and_hands_back_what_is_unfinished(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("rollout", max_instances=2)) as platform:
            frames: list[AnyFrame] = []
            call = asyncio.create_task(collect(platform, frames, "slow:0.005"))
            await until(lambda: bool(frames))
            platform.preempt("rollout-1")
            await frames_of(platform, rollout())  # goes to another instance
            await call
            assert Drain(reason="SIGTERM") in frames
            assert frames[-1] == RolloutDone(unfinished=[0])
            await until(lambda: [i.id for i in platform.instances()] == ["rollout-2"])
            log = os.path.join(tmp_path, "logs", "rollout-1.log")
            assert "closed" in await asyncio.to_thread(_read, log)

    asyncio.run(run())


def test_sigterm_from_elsewhere_drains_too_and_calls_go_on_elsewhere(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("rollout", max_instances=1)) as platform:
            frames: list[AnyFrame] = []
            call = asyncio.create_task(collect(platform, frames, "slow:0.005"))
            await until(lambda: bool(frames))
            waiting = asyncio.create_task(frames_of(platform, rollout()))
            os.kill(pid_in(frames), signal.SIGTERM)
            await call
            assert frames[-1] == RolloutDone(unfinished=[0])
            assert isinstance((await waiting)[-1], RolloutDone)

    asyncio.run(run())


async def is_ready(instance: LocalInstance) -> bool:
    request = httpx.Request("GET", "http://function/readyz")
    response = await instance._transport.handle_async_request(request)
    await response.aread()
    await response.aclose()
    return response.status_code == 200


def test_an_instance_that_drains_since_sigterm_from_elsewhere_fails_no_new_call(
    tmp_path: Path,
) -> None:
    """It refuses them while it still ends another; they wait for the instance that follows it."""

    async def run() -> None:
        training = Deployment("training", max_instances=1, concurrency=2)
        async with platform_of(tmp_path, training, settings=options(grace_s=2.0)) as platform:
            deaf = asyncio.create_task(frames_of(platform, train(tmp_path, "a", "deaf:600")))
            await until(lambda: any(i.state == "busy" for i in platform.instances()))
            (instance,) = platform._pools["training"].instances.values()
            assert instance.process is not None
            os.kill(instance.process.pid, signal.SIGTERM)
            while await is_ready(instance):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            (done,) = await frames_of(platform, train(tmp_path, "b"))
            assert isinstance(done, TrainDone)
            assert [i.id for i in platform.instances()] == ["training-2"]
            with pytest.raises(TransientError):
                await deaf

    asyncio.run(run())


def test_a_call_that_ignores_the_drain_is_cut_off_after_the_grace(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, settings=options(grace_s=0.2)) as platform:
            frames: list[AnyFrame] = []
            call = asyncio.create_task(collect(platform, frames, "deaf:600"))
            await until(lambda: bool(frames))
            platform.preempt("rollout-1")
            with pytest.raises(TransientError):
                await call

    asyncio.run(run())


def test_an_instance_that_hangs_is_killed(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, settings=options(silence_s=0.3)) as platform:
            frames: list[AnyFrame] = []
            call = asyncio.create_task(collect(platform, frames, "slow:0.005"))
            await until(lambda: bool(frames))
            os.kill(pid_in(frames), signal.SIGSTOP)
            with pytest.raises(TransientError, match=r"sent nothing for 0\.3 s"):
                await call
            await frames_of(platform, rollout())

    asyncio.run(run())


def test_a_call_is_not_held_up_by_one_that_was_aborted_and_does_not_hear(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("rollout", max_instances=2)) as platform:
            await platform.scale("rollout", 2)
            await until(lambda: all(i.state == "idle" for i in platform.instances()))
            deaf = platform.invoke(rollout("deaf:600"))
            await anext(deaf)
            await deaf.aclose()
            for _ in range(5):  # the deaf one was used last, but the other can serve
                await frames_of(platform, rollout())
            assert len(platform.instances()) == 2
            for instance in platform._pools["rollout"].instances.values():
                instance.kill()

    asyncio.run(run())


def test_an_instance_that_never_ends_an_aborted_call_is_replaced(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = Deployment("rollout", max_instances=1)
        async with platform_of(tmp_path, deployment, settings=options(silence_s=0.3)) as platform:
            deaf = platform.invoke(rollout("deaf:600"))
            await anext(deaf)
            await deaf.aclose()
            await frames_of(platform, rollout())
            assert [i.id for i in platform.instances()] == ["rollout-2"]

    asyncio.run(run())


# --- starting -----------------------------------------------------------------------------------


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
            assert platform._started is not None
            zygote = platform._started[1]._zygote
            assert zygote is not None
            os.kill(zygote._child.pid, signal.SIGKILL)
            await frames_of(platform, rollout())  # needs another instance, so another zygote
            seen = len(frames)
            await until(lambda: len(frames) > seen + 3)
            os.kill(pid_in(frames), signal.SIGKILL)  # still watched, if not by its parent
            with pytest.raises(TransientError, match="rollout-1"):
                await call

    asyncio.run(run())


# --- the controller's end -----------------------------------------------------------------------

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
                print(platform._started[0].path, flush=True)

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
    code = controller.process.wait(timeout=20)
    wait_until_gone(controller.others, within_s=2 if code == -signal.SIGKILL else 0.5)
    assert controller.marked() == {}
    give_up = time.monotonic() + 2
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


def _read(path: str) -> str:
    return Path(path).read_text()
