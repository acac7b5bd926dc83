"""The local platform with real processes: when instances run, and who gets them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.local import LocalOptions, LocalPlatform
from rlhfless.errors import CapacityError, InternalError
from rlhfless.messages import (
    AnyFrame,
    Finished,
    Progress,
    RolloutDone,
    Tokens,
    TrainDone,
)
from tests.support.processes import (
    command_of,
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


def pid_of(frames: list[AnyFrame]) -> int:
    """The probe's tokens are its pid."""
    (tokens,) = (f for f in frames if isinstance(f, Tokens))
    return tokens.tokens[0]


def count(platform: LocalPlatform, state: str) -> int:
    return sum(i.state == state for i in platform.instances())


class Slow:
    """A rollout that runs until it is closed or its instance drains."""

    def __init__(self, platform: LocalPlatform, behaviour: str = "slow:0.005") -> None:
        self.frames: list[AnyFrame] = []
        self.started = asyncio.Event()
        self.task = asyncio.create_task(self._run(platform.invoke(rollout(behaviour))))

    async def _run(self, frames: AsyncIterator[AnyFrame]) -> None:
        async for frame in frames:
            self.frames.append(frame)
            self.started.set()

    @property
    def pid(self) -> int:
        (first, *_) = self.frames
        assert isinstance(first, Progress)
        return first.kv_tokens

    async def cancel(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@pytest.mark.parametrize("zygote", [True, False], ids=["zygote", "fresh"])
def test_a_cold_start_then_warm_reuse(tmp_path: Path, zygote: bool) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, settings=options(zygote=zygote)) as platform:
            assert platform.instances() == ()
            frames = await frames_of(platform, rollout(samples=2))
            assert [type(f) for f in frames] == [Tokens, Finished, RolloutDone]
            assert pid_of(frames) == pid_of(await frames_of(platform, rollout()))
            assert [(i.function, i.state) for i in platform.instances()] == [("rollout", "idle")]

    asyncio.run(run())


def test_frames_arrive_while_the_call_runs(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path) as platform:
            slow = Slow(platform)
            await slow.started.wait()
            assert not slow.task.done()
            assert count(platform, "busy") == 1
            await slow.cancel()

    asyncio.run(run())


def test_calls_wait_in_order_when_all_instances_are_full(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("rollout", max_instances=1)) as platform:
            order: list[int] = []

            async def call(number: int) -> None:
                await frames_of(platform, rollout())
                order.append(number)

            async with asyncio.TaskGroup() as group:
                for number in range(8):
                    group.create_task(call(number))
            assert order == list(range(8))
            assert len(platform.instances()) == 1

    asyncio.run(run())


def test_instances_start_on_demand_up_to_the_maximum(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("rollout", max_instances=3)) as platform:
            calls = [Slow(platform) for _ in range(5)]
            await until(lambda: sum(c.started.is_set() for c in calls) == 3)
            assert len(platform.instances()) == 3
            assert len({c.pid for c in calls if c.frames}) == 3
            running = [c for c in calls if c.frames]
            await running[0].cancel()
            await until(lambda: sum(c.started.is_set() for c in calls) == 4)
            assert len(platform.instances()) == 3
            for call in calls:
                await call.cancel()

    asyncio.run(run())


def test_one_instance_serves_as_many_calls_as_it_may(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = Deployment("rollout", max_instances=2, concurrency=2)
        async with platform_of(tmp_path, deployment) as platform:
            calls = [Slow(platform) for _ in range(4)]
            for call in calls:
                await call.started.wait()
            assert [i.calls for i in platform.instances()] == [2, 2]
            for call in calls:
                await call.cancel()

    asyncio.run(run())


def test_the_instance_used_last_is_used_again_so_that_others_time_out(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = Deployment("rollout", max_instances=2, idle_timeout_s=0.5)
        async with platform_of(tmp_path, deployment) as platform:
            await platform.scale("rollout", 2)
            await until(lambda: count(platform, "idle") == 2)
            pid = pid_of(await frames_of(platform, rollout()))
            while len(platform.instances()) == 2:
                assert pid_of(await frames_of(platform, rollout())) == pid
                await asyncio.sleep(0.01)
            await until(lambda: platform.instances() == ())  # scaled to zero
            assert pid_of(await frames_of(platform, rollout())) != pid

    asyncio.run(run())


def test_scale_warms_and_releases(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("rollout", max_instances=3)) as platform:
            await platform.scale("rollout", 9)
            assert len(platform.instances()) == 3  # returns at once, bounded by the maximum
            await until(lambda: count(platform, "idle") == 3)
            await platform.scale("rollout", 1)
            await until(lambda: len(platform.instances()) == 1)
            await platform.scale("rollout", 0)
            await until(lambda: platform.instances() == ())

    asyncio.run(run())


def test_scaling_down_lets_a_busy_instance_finish(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path) as platform:
            slow = Slow(platform)
            await slow.started.wait()
            await platform.scale("rollout", 0)
            seen = len(slow.frames)
            await until(lambda: len(slow.frames) > seen + 3)
            assert count(platform, "busy") == 1
            await slow.cancel()
            await until(lambda: platform.instances() == ())

    asyncio.run(run())


def test_idle_instances_go_at_once_and_busy_ones_stay(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("rollout", max_instances=3)) as platform:
            slow = Slow(platform)
            await slow.started.wait()
            (busy,) = platform.instances()
            await platform.scale("rollout", 3)
            await until(lambda: count(platform, "idle") == 2)
            await platform.scale("rollout", 1)
            assert count(platform, "stopping") == 2
            assert [i.id for i in platform.instances() if i.state == "busy"] == [busy.id]
            await until(lambda: len(platform.instances()) == 1)
            seen = len(slow.frames)
            await until(lambda: len(slow.frames) > seen + 3)
            await slow.cancel()
            assert pid_of(await frames_of(platform, rollout())) == slow.pid

    asyncio.run(run())


def test_scaling_down_and_up_again_at_once(tmp_path: Path) -> None:
    """Those that go still hold their places: others begin as soon as they are gone."""

    async def run() -> None:
        async with platform_of(tmp_path, Deployment("rollout", max_instances=3)) as platform:
            await platform.scale("rollout", 3)
            await until(lambda: count(platform, "idle") == 3)
            before = {i.id for i in platform.instances()}
            for _ in range(3):
                await platform.scale("rollout", 0)
                await platform.scale("rollout", 2)
            assert count(platform, "stopping") == 3
            await until(lambda: count(platform, "idle") == 2)
            assert not before.intersection(i.id for i in platform.instances())
            assert len(platform.instances()) == 2
            calls = [frames_of(platform, rollout()) for _ in range(2)]
            assert len({pid_of(frames) for frames in await asyncio.gather(*calls)}) == 2

    asyncio.run(run())


def test_a_call_right_after_scaling_down_is_served(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("rollout", max_instances=2)) as platform:
            await platform.scale("rollout", 2)
            await until(lambda: count(platform, "idle") == 2)
            await platform.scale("rollout", 0)
            assert len(await frames_of(platform, rollout())) == 3
            await until(lambda: len(platform.instances()) == 1)

    asyncio.run(run())


def test_scaling_up_again_keeps_what_was_to_go(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path) as platform:
            slow = Slow(platform)
            await slow.started.wait()
            await platform.scale("rollout", 0)
            await platform.scale("rollout", 1)
            pid = slow.pid
            await slow.cancel()
            assert pid_of(await frames_of(platform, rollout())) == pid

    asyncio.run(run())


def test_closing_the_answer_stops_the_call_and_frees_its_place(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("rollout", max_instances=1)) as platform:
            frames = platform.invoke(rollout("slow:0.005"))
            first = await anext(frames)
            await frames.aclose()
            assert isinstance(first, Progress)
            assert pid_of(await frames_of(platform, rollout())) == first.kv_tokens

    asyncio.run(run())


def test_a_call_that_gives_up_waiting_leaves_the_queue(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("rollout", max_instances=1)) as platform:
            first, second, third = Slow(platform), Slow(platform), Slow(platform)
            await first.started.wait()
            await second.cancel()
            await first.cancel()
            await third.started.wait()
            await third.cancel()
            assert [i.calls for i in platform.instances()] == [0]

    asyncio.run(run())


def test_a_repeat_on_another_instance_returns_the_first_result(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("training", max_instances=1)) as platform:
            (first,) = await frames_of(platform, train(tmp_path, "3/train/0"))
            assert isinstance(first, TrainDone)
            await platform.scale("training", 0)
            await until(lambda: platform.instances() == ())
            (repeat,) = await frames_of(platform, train(tmp_path, "3/train/0"))
            (other,) = await frames_of(platform, train(tmp_path, "4/train/0"))
            assert isinstance(other, TrainDone)
            assert repeat == first
            assert other.metrics["pid"] != first.metrics["pid"]
            assert other.metrics["runs"] == 2

    asyncio.run(run())


def test_functions_have_instances_of_their_own(tmp_path: Path) -> None:
    async def run() -> None:
        deployments = Deployment("rollout"), Deployment("training")
        async with platform_of(tmp_path, *deployments) as platform:
            pid = pid_of(await frames_of(platform, rollout()))
            (done,) = await frames_of(platform, train(tmp_path, "0/train/0"))
            assert isinstance(done, TrainDone)
            assert done.metrics["pid"] != pid

    asyncio.run(run())


def test_a_function_that_is_not_deployed_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path, Deployment("training")) as platform:
            with pytest.raises(InternalError, match="rollout is not deployed"):
                await frames_of(platform, rollout())

    asyncio.run(run())


def test_many_frames_come_through_a_slow_reader(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path) as platform:
            seen = 0
            async for frame in platform.invoke(rollout("flood:20000")):
                if isinstance(frame, Progress):
                    assert frame.running == seen
                    seen += 1
                    if seen % 5000 == 0:
                        await asyncio.sleep(0.05)
            assert seen == 20000

    asyncio.run(run())


def test_an_instance_serves_nobody_without_the_token(tmp_path: Path) -> None:
    async def run() -> None:
        async with platform_of(tmp_path) as platform:
            pid = pid_of(await frames_of(platform, rollout()))
            home = home_of(platform)
            assert os.stat(home).st_mode & 0o777 == 0o700
            socket = os.path.join(home, "rollout-1.sock")
            transport = httpx.AsyncHTTPTransport(uds=socket, verify=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                for headers in ({}, {"authorization": "Bearer guess"}):
                    answer = await client.post("/v1/rollout", content=b"", headers=headers)
                    assert answer.status_code == 401
                assert (await client.get("/metrics")).status_code == 200
            assert platform.host.token not in command_of(pid)

    asyncio.run(run())


def test_the_ledger_books_every_second_of_every_instance(tmp_path: Path) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        ledger = Ledger({"rollout": 2.0})
        platform = LocalPlatform(
            [Deployment("rollout", max_instances=2)],
            ledger=ledger,
            folder=str(tmp_path),
            options=options(),
        )
        async with platform:
            began = loop.time()
            await platform.scale("rollout", 2)
            await until(lambda: count(platform, "idle") == 2)
            slow = Slow(platform)
            await slow.started.wait()
            busy_from = loop.time()
            await asyncio.sleep(0.1)
            busy_s = loop.time() - busy_from
            await slow.cancel()
        ended = loop.time()
        usage = ledger.usage(ended)["rollout"]
        assert math.isclose(usage.held_s, usage.cold_s + usage.busy_s + usage.idle_s)
        assert usage.busy_s >= busy_s
        assert 0 < usage.cold_s < usage.held_s < 2 * (ended - began)
        assert ledger.usage(ended + 100) == {"rollout": usage}  # nothing is held any more
        for name in ("rollout-1", "rollout-2"):
            spans = [s for s in ledger.spans if s.instance == name]
            assert spans[0].phase == "cold"
            assert all(a.end_s == b.start_s for a, b in pairwise(spans))

    asyncio.run(run())


def test_close_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHFLESS_TEST_MARK", str(tmp_path))
    homes = []

    async def run() -> list[int]:
        deployment = Deployment("rollout", max_instances=3)
        async with platform_of(tmp_path, deployment, settings=options(grace_s=1.0)) as platform:
            deaf, child = Slow(platform, "deaf:600"), Slow(platform, "child")
            await asyncio.gather(deaf.started.wait(), child.started.wait())
            grandchild = child.frames[0]
            assert isinstance(grandchild, Progress)
            pids = [*marked(str(tmp_path)), grandchild.running]
            assert len(set(pids)) == 5  # zygote, guardian, two instances, sleep
            homes.append(home_of(platform))
            calls = asyncio.gather(deaf.task, child.task, return_exceptions=True)
        await calls
        assert platform.instances() == ()
        with pytest.raises(CapacityError, match="closing"):
            await frames_of(platform, rollout())
        return pids

    before = time.monotonic()
    pids = asyncio.run(run())
    assert not any(lives(pid) for pid in pids)
    assert marked(str(tmp_path)) == {}
    assert not os.path.exists(homes[0])
    assert time.monotonic() - before < 60


def test_a_platform_that_was_never_used_closes(tmp_path: Path) -> None:
    async def run() -> None:
        platform = LocalPlatform([Deployment("rollout")], ledger=Ledger(), folder=str(tmp_path))
        await platform.close()
        await platform.close()

    asyncio.run(run())


def test_forked_instances_have_torch_and_threads_of_their_own(tmp_path: Path) -> None:
    """With what a real platform preloads: the zygote is single-threaded when it forks."""

    async def run() -> None:
        settings = LocalOptions(apps={"rollout": "tests.apps.torch_probe:create"})
        deployment = Deployment("rollout", max_instances=2, threads=2)
        async with platform_of(tmp_path, deployment, settings=settings) as platform:
            calls = [frames_of(platform, rollout(samples=3)) for _ in range(2)]
            for frames in await asyncio.gather(*calls):
                done = frames[-1]
                assert isinstance(done, RolloutDone)
                assert done.generated_tokens == 2  # torch's threads
                assert done.prefill_saved == 1  # torch was there when the function was imported
                assert done.prefill_computed == 512**2  # a product of two matrices of ones
        assert await asyncio.to_thread((tmp_path / "logs" / "zygote.log").read_text) == ""

    asyncio.run(run())
    wait_until_gone(marked(str(tmp_path)))
