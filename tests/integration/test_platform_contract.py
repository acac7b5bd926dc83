"""What every platform must do, whatever an instance is there."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from controller.platforms.base import Deployment, Platform
from rlhfless.errors import CapacityError, InternalError, RlhflessError, TransientError, UserError
from rlhfless.messages import (
    Drain,
    Finished,
    FunctionName,
    Progress,
    Released,
    RolloutDone,
    SteerRequest,
    Tokens,
    TrainDone,
)
from tests.support.platform_worlds import WORLDS, Open
from tests.support.processes import call_info, frames_of, pid_in, rollout, train, until

pytestmark = pytest.mark.slow
IDLE_S = 0.3


@pytest.fixture(params=WORLDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "ray":
        request.getfixturevalue("shared_ray")
    return Open(*WORLDS[request.param], tmp_path)


def rollouts(most: int = 1, concurrency: int = 1, idle_s: float = 60.0) -> Deployment:
    return Deployment("rollout", max_instances=most, concurrency=concurrency, idle_timeout_s=idle_s)


class Slow:
    """A rollout that goes on until it is ended."""

    def __init__(self, platform: Platform) -> None:
        self.frames: list[object] = []
        self.task = asyncio.create_task(self._run(platform))

    async def _run(self, platform: Platform) -> None:
        async for frame in platform.invoke(rollout("slow:0.01")):
            self.frames.append(frame)

    @property
    def begun(self) -> bool:
        return any(isinstance(frame, Progress) for frame in self.frames)

    @property
    def pid(self) -> int:
        return next(f.kv_tokens for f in self.frames if isinstance(f, Progress))

    async def cancel(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


def test_a_cold_start_then_warm_reuse(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts()) as under:
            assert under.platform.instances() == ()
            frames = await frames_of(under.platform, rollout(samples=2))
            assert [type(f) for f in frames] == [Tokens, Finished, RolloutDone]
            await until(lambda: under.count("idle") == 1)
            again = await frames_of(under.platform, rollout(samples=2))
            assert again[0] == frames[0]  # the tokens say who served it

    opened.run(run())


def test_frames_come_while_the_call_runs_and_closing_ends_it(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts()) as under:
            slow = Slow(under.platform)
            await until(lambda: slow.begun and under.count("busy") == 1)
            assert not slow.task.done()
            await slow.cancel()
            frames = await frames_of(under.platform, rollout())
            tokens = next(f for f in frames if isinstance(f, Tokens))
            assert tokens.tokens == [slow.pid]

    opened.run(run())


def test_calls_bring_up_instances_to_the_maximum_and_the_others_wait(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts(2)) as under:
            calls = [Slow(under.platform) for _ in range(3)]
            await until(lambda: sum(call.begun for call in calls) == 2)
            assert len({call.pid for call in calls if call.begun}) == 2
            assert len(under.platform.instances()) == 2
            await next(call for call in calls if call.begun).cancel()
            await until(lambda: sum(call.begun for call in calls) == 3)
            for call in calls:
                await call.cancel()

    opened.run(run())


def test_an_instance_serves_as_many_calls_as_it_may(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts(1, concurrency=2)) as under:
            calls = [Slow(under.platform) for _ in range(2)]
            await until(lambda: all(call.begun for call in calls))
            await until(lambda: [i.calls for i in under.platform.instances()] == [2])
            for call in calls:
                await call.cancel()

    opened.run(run())


def test_scale_warms(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts(3)) as under:
            await under.platform.scale("rollout", 2)
            await until(lambda: under.count("idle") == 2)

    opened.run(run())


def test_an_idle_instance_goes_and_the_next_call_starts_another(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts(idle_s=IDLE_S)) as under:
            first = await frames_of(under.platform, rollout())
            await until(lambda: under.platform.instances() == ())
            second = await frames_of(under.platform, rollout())
            assert first[0] != second[0]

    opened.run(run())


def test_a_preempted_instance_hands_its_work_back(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts()) as under:
            slow = Slow(under.platform)
            await until(lambda: slow.begun and under.count("busy") == 1)
            (busy,) = under.platform.instances()
            under.preempt(busy.id)
            await slow.task
            assert any(isinstance(frame, Drain) for frame in slow.frames)
            done = slow.frames[-1]
            assert isinstance(done, RolloutDone)
            assert done.unfinished == [0]
            assert len(await frames_of(under.platform, rollout())) == 3

    opened.run(run())


def test_the_calls_of_a_killed_instance_fail_and_others_go_on(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts()) as under:
            slow = Slow(under.platform)
            await until(lambda: slow.begun and under.count("busy") == 1)
            (busy,) = under.platform.instances()
            under.kill(busy.id)
            with pytest.raises(TransientError):
                await slow.task
            assert len(await frames_of(under.platform, rollout())) == 3

    opened.run(run())


@pytest.mark.parametrize(
    ("behaviour", "error"), [("user", UserError), ("raise", RlhflessError), ("oom", CapacityError)]
)
def test_a_functions_error_is_raised_here(
    opened: Open, behaviour: str, error: type[RlhflessError]
) -> None:
    async def run() -> None:
        async with opened(rollouts()) as under:
            with pytest.raises(error):
                await frames_of(under.platform, rollout(behaviour))
            assert len(await frames_of(under.platform, rollout())) == 3

    opened.run(run())


def test_a_repeated_call_returns_the_first_result(opened: Open, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(Deployment("training")) as under:
            if not under.shares_files:
                pytest.skip("needs a folder that the test and the instances see")
            store = tmp_path / "store"
            store.mkdir()
            first = await frames_of(under.platform, train(store, "0/train/0"))
            again = await frames_of(under.platform, train(store, "0/train/0"))
            (done,), (repeated,) = first, again
            assert isinstance(done, TrainDone)
            assert isinstance(repeated, TrainDone)
            assert (repeated.version, repeated.metrics) == (done.version, done.metrics)

    opened.run(run())


def test_a_function_that_cannot_start_fails_its_calls(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts(), app="broken") as under:
            with pytest.raises(InternalError):
                await frames_of(under.platform, rollout())

    opened.run(run())


def test_where_nothing_can_be_started_calls_are_told_so(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts(2), full=True) as under:
            with pytest.raises(CapacityError, match=r"cannot start|no node"):
                await frames_of(under.platform, rollout())
            assert under.count("idle") == under.count("busy") == 0
            with pytest.raises(CapacityError):  # nor later
                await frames_of(under.platform, rollout())

    opened.run(run())


def test_steering_a_call_that_is_not_there_is_refused(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts()) as under:
            request = SteerRequest(call=call_info("echo", name="steer"), target="0/none", number=1)
            assert not await under.platform.steer(request)

    opened.run(run())


def test_a_running_call_is_steered(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts(2)) as under:
            if not under.steers:
                pytest.skip("pods' own addresses are not reached from here")
            frames: list[object] = []

            async def call() -> None:
                async for frame in under.platform.invoke(rollout("steered", samples=2)):
                    frames.append(frame)  # noqa: PERF401

            task = asyncio.create_task(call())
            await until(lambda: any(isinstance(f, Progress) for f in frames))
            info = call_info("steered", name="0/steer/1")
            change = SteerRequest(call=info, target="0/x/0", number=1, release=[1])
            assert await under.platform.steer(change)
            await task
            assert Released(samples=[1]) in frames
            assert not await under.platform.steer(change)  # it has ended

    opened.run(run())


def test_the_books_balance(opened: Open) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with opened(rollouts(idle_s=IDLE_S), Deployment("reward")) as under:
            slow = Slow(under.platform)
            await until(lambda: slow.begun and under.count("busy") == 1)
            await slow.cancel()
            await until(lambda: under.platform.instances() == ())
            usage = under.ledger.usage(loop.time())
            assert set(usage) == {"rollout"}
            assert (
                min(usage["rollout"].cold_s, usage["rollout"].busy_s, usage["rollout"].idle_s) > 0
            )

    opened.run(run())


def test_closing_ends_calls_and_instances(opened: Open) -> None:
    async def run() -> None:
        async with opened(rollouts(2)) as under:
            frames: list[object] = []

            async def call() -> None:
                async for frame in under.platform.invoke(rollout("slow:0.01")):
                    frames.append(frame)  # noqa: PERF401

            task = asyncio.create_task(call())
            await until(lambda: any(isinstance(f, Progress) for f in frames))
            pid = pid_in([f for f in frames if isinstance(f, Progress)])
        await until(lambda: not under.lives(pid))
        await asyncio.wait({task})
        assert task.exception() is None or isinstance(task.exception(), RlhflessError)
        with pytest.raises(CapacityError):
            await frames_of(under.platform, rollout())

    opened.run(run())


def test_a_function_that_is_not_deployed(opened: Open) -> None:
    missing: FunctionName = "training"

    async def run() -> None:
        async with opened(rollouts()) as under:
            with pytest.raises(InternalError):
                await under.platform.scale(missing, 1)

    opened.run(run())
