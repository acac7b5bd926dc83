"""The local platform when instances die, hang, drain or refuse."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from controller.platforms.base import Deployment
from controller.platforms.local_instance import LocalInstance
from rlhfless.errors import CapacityError, InternalError, RlhflessError, TransientError, UserError
from rlhfless.messages import AnyFrame, Drain, Progress, RolloutDone, TrainDone
from tests.support.processes import (
    collect,
    frames_of,
    lives,
    options,
    pid_in,
    platform_of,
    rollout,
    train,
    until,
)

pytestmark = pytest.mark.slow


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


async def get(instance: LocalInstance, path: str) -> tuple[int, str]:
    request = httpx.Request("GET", f"http://function{path}")
    response = await instance._transport.handle_async_request(request)
    body = await response.aread()
    await response.aclose()
    return response.status_code, body.decode()


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
            at_work = 'rlhfless_calls_in_flight{function="training"} 1.0'
            while at_work not in (await get(instance, "/metrics"))[1]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            os.kill(instance.process.pid, signal.SIGTERM)
            while (await get(instance, "/readyz"))[0] == 200:  # noqa: ASYNC110
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


def _read(path: str) -> str:
    return Path(path).read_text()
