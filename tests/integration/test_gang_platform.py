"""Training over nodes against stand-ins of Kubernetes' Jobs and Kueue, whose pods are processes."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.gang import GangPlatform
from controller.platforms.knative_garbage import collect
from rlhfless.errors import CapacityError, InternalError, TransientError, UserError
from rlhfless.messages import AnyFrame, TrainDone
from tests.support.gang_cluster import JOBS, PODS, WORKLOADS
from tests.support.gang_platforms import TWO, gangs
from tests.support.given_cluster import only_standin
from tests.support.knative_cluster import NO_IMAGE, TOKEN
from tests.support.knative_platforms import settings, with_gangs, world
from tests.support.kube_api import Object
from tests.support.processes import frames_of, train, until

pytestmark = [pytest.mark.slow, only_standin("Jobs and their pods are its own")]
ADDRESSES = ("api/v1", "services", "default")
NO_NODE = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "message": "9 Insufficient nvidia.com/gpu."}
    ],
}


def pid(frames: list[AnyFrame]) -> float:
    done = frames[-1]
    assert isinstance(done, TrainDone)
    return done.metrics["pid"]


def test_a_call_starts_a_gang_and_leaving_takes_all_of_it_away(tmp_path: Path) -> None:
    async def run() -> None:
        async with gangs(tmp_path) as place:
            async with place.platform() as platform:
                assert platform.instances() == ()
                first = await place.call(platform, "0/train/0")
                leader = place.gangs.pod(0)
                assert leader.process is not None and pid(first) == leader.process.pid
                assert len(place.gangs.pods) == 2
                assert place.gangs.num_admitted == 1
                await until(lambda: [i.state for i in platform.instances()] == ["idle"])
                assert pid(await place.call(platform, "1/train/0")) == pid(first)
                (address,) = place.all(ADDRESSES)
                (job,) = place.all(JOBS)
                assert address["spec"]["clusterIP"] == "None"
                labels = job["spec"]["template"]["metadata"]["labels"]
                assert address["spec"]["selector"].items() <= labels.items()
            await until(lambda: not any(place.world.api.store.objects.values()))

    asyncio.run(run())


def test_entering_asks_kueue_for_nothing_and_scale_does(tmp_path: Path) -> None:
    async def run() -> None:
        async with gangs(tmp_path) as place, place.platform() as platform:
            await asyncio.sleep(0.2)
            assert place.all(JOBS) == []
            await platform.scale("training", 1)
            await until(lambda: [i.state for i in platform.instances()] == ["idle"])
            assert len(place.gangs.pods) == 2

    asyncio.run(run())


def test_leaving_while_one_is_made_takes_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with gangs(tmp_path) as place:
            kube, asked = place.world.kube, asyncio.Event()
            create = kube.create

            async def late(*asked_for: Any) -> Object:
                await asyncio.sleep(0.5)
                return await create(*asked_for)

            async def create_slowly(*asked_for: Any) -> Object:
                sent = asyncio.create_task(late(*asked_for))  # it arrives, whoever waits for it
                asked.set()
                return await asyncio.shield(sent)

            monkeypatch.setattr(kube, "create", create_slowly)
            async with place.platform() as platform:
                await platform.scale("training", 1)
                await asked.wait()
            await asyncio.sleep(1)
            assert place.all(JOBS) == []

    asyncio.run(run())


def test_without_work_it_goes_after_the_delay_and_the_next_call_makes_another(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        idle = Deployment("training", workers=2, idle_timeout_s=0.3)
        async with gangs(tmp_path, idle_s=0) as place, place.platform(idle) as platform:
            first = await place.call(platform, "0/train/0")
            (job,) = place.all(JOBS)
            await until(lambda: place.all(JOBS) == [] and platform.instances() == ())
            assert pid(await place.call(platform, "1/train/0")) != pid(first)
            (again,) = place.all(JOBS)
            assert again["metadata"]["name"] != job["metadata"]["name"]

    asyncio.run(run())


@pytest.mark.parametrize("index", [0, 1], ids=["leader", "follower"])
@pytest.mark.parametrize("how", ["kill", "preempt"])
def test_when_one_of_its_pods_ends_its_calls_fail_and_another_is_made(
    tmp_path: Path, index: int, how: str
) -> None:
    async def run() -> None:
        async with gangs(tmp_path) as place, place.platform() as platform:
            task = await place.begun(platform)
            before = {pod.name for pod in place.gangs.pods}
            getattr(place.gangs, how)(place.gangs.pod(index))
            if how == "kill":
                with pytest.raises(TransientError):
                    await task
            else:  # a notice leaves it the time to hand over, or it breaks
                await asyncio.wait({task})
                assert task.exception() is None or isinstance(task.exception(), TransientError)
            await place.call(platform, "1/train/0")
            assert not before & {pod.name for pod in place.gangs.pods if not pod.stopping}
            assert place.gangs.num_admitted == 2

    asyncio.run(run())


def test_what_kueue_takes_back_is_asked_for_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with gangs(tmp_path) as place, place.platform() as platform:
            task = await place.begun(platform)
            place.gangs.evict()
            await asyncio.wait({task})
            assert task.exception() is None or isinstance(task.exception(), TransientError)
            waiting = asyncio.create_task(place.call(platform, "1/train/0"))
            await until(lambda: platform.instances() == () and len(place.all(JOBS)) == 1)
            assert not waiting.done()
            place.gangs.quota = {"gangs": 2}
            await waiting

    asyncio.run(run())


@pytest.mark.parametrize(
    ("quota", "queue", "said"),
    [(1, "gangs", "insufficient unused quota"), (2, "none", "LocalQueue none doesn't exist")],
)
def test_why_kueue_does_not_admit_it_is_told(
    tmp_path: Path, quota: int, queue: str, said: str
) -> None:
    async def run() -> None:
        async with (
            gangs(tmp_path, quota=quota, queue=queue, deadline="1s") as place,
            place.platform() as platform,
        ):
            with pytest.raises(CapacityError, match=said):
                await place.call(platform, "0/train/0")
            assert platform.instances() == ()

    asyncio.run(run())


def test_a_cluster_without_kueue_is_told_of(tmp_path: Path) -> None:
    async def run() -> None:
        told = with_gangs(settings(progressDeadline="1s"))
        async with world(tmp_path, told=told) as place:
            platform = GangPlatform(
                TWO,
                job="job-1",
                ledger=Ledger(),
                kube=place.kube,
                settings=place.settings,
                token=TOKEN,
            )
            async with platform:
                with pytest.raises(CapacityError, match="Kueue has not taken note") as error:
                    await frames_of(platform, train(tmp_path, "0/train/0"))  # type: ignore[arg-type]
                assert error.value.hint is not None and "Kueue running" in error.value.hint

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "family", "said"),
    [
        (NO_IMAGE, UserError, "no such image"),
        (NO_NODE, CapacityError, "Insufficient nvidia.com/gpu"),
    ],
)
def test_why_its_pods_do_not_start_is_told(
    tmp_path: Path, status: Object, family: type[Exception], said: str
) -> None:
    async def run() -> None:
        async with gangs(tmp_path, deadline="1s") as place, place.platform() as platform:
            place.world.cluster.pod_status = lambda _: status
            with pytest.raises(family, match=said):
                await place.call(platform, "0/train/0")
            assert platform.instances() == ()  # without nodes it is not paid for

    asyncio.run(run())


def test_a_function_that_ends_as_soon_as_it_starts(tmp_path: Path) -> None:
    async def run() -> None:
        async with gangs(tmp_path, app="broken") as place, place.platform() as platform:
            with pytest.raises(InternalError, match="ends as soon as it starts"):
                await place.call(platform, "0/train/0")
            assert place.gangs.num_admitted == 2

    asyncio.run(run())


def test_all_its_accelerators_are_booked_once(tmp_path: Path) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        ledger = Ledger(workers={"training": 2})
        async with gangs(tmp_path) as place:
            began_s = loop.time()
            async with place.platform(ledger=ledger) as platform:
                await place.call(platform, "0/train/0")
                await until(lambda: [i.state for i in platform.instances()] == ["idle"])
            usage = ledger.usage(loop.time())["training"]
            assert min(usage.cold_s, usage.busy_s, usage.idle_s) > 0
            assert usage.held_s <= 2 * (loop.time() - began_s)
            whole = [span for span in ledger.spans if span.weight == 1]
            assert usage.held_s == pytest.approx(2 * sum(s.charged_s for s in ledger.spans))
            assert {span.phase for span in whole} >= {"busy", "idle"}
            assert len({span.instance for span in ledger.spans}) == 1

    asyncio.run(run())


def test_a_gang_is_taken_over_with_its_job(tmp_path: Path) -> None:
    async def run() -> None:
        async with gangs(tmp_path) as place:
            lost = place.platform()
            async with lost:
                first = await place.call(lost, "0/train/0")
                async with place.platform() as taken:
                    await lost.close()
                    assert pid(await place.call(taken, "1/train/0")) == pid(first)
                assert place.all(JOBS) == []
            assert place.gangs.num_admitted == 1

    asyncio.run(run())


def test_one_that_is_otherwise_now_is_not_taken_over(tmp_path: Path) -> None:
    async def run() -> None:
        async with gangs(tmp_path, quota=5) as place:
            lost = place.platform()
            async with lost:
                first = await place.call(lost, "0/train/0")
                async with place.platform(Deployment("training", workers=3)) as taken:
                    assert pid(await place.call(taken, "1/train/0")) != pid(first)
                    await until(lambda: len(place.all(PODS)) == 3)

    asyncio.run(run())


def test_what_a_crash_leaves_is_collected(tmp_path: Path) -> None:
    async def run() -> None:
        async with gangs(tmp_path) as place:
            crashed = place.platform()
            await crashed.__aenter__()
            await place.call(crashed, "0/train/0")
            for task in crashed._tasks:  # as when its process is killed
                task.cancel()
            await asyncio.gather(*crashed._tasks, return_exceptions=True)
            crashed._tasks.clear()
            running = ["job-1"]

            async def live() -> list[str]:
                return running

            kube, told = place.world.kube, place.world.settings
            assert await collect(kube, told, live) == []
            running.clear()
            assert len(await collect(kube, told, live)) == 1
            await until(lambda: place.gangs.pods == [] and place.all(WORKLOADS) == [])
            await crashed.close()

    asyncio.run(run())


def test_a_bound_of_none_holds_calls_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with gangs(tmp_path) as place, place.platform() as platform:
            platform.bound("training", 0)
            task = asyncio.create_task(place.call(platform, "0/train/0"))
            await asyncio.sleep(0.2)
            assert place.all(JOBS) == []
            platform.bound("training", 1)
            await task

    asyncio.run(run())


def test_what_happens_to_the_api_does_not_happen_to_calls(tmp_path: Path) -> None:
    async def run() -> None:
        async with gangs(tmp_path) as place, place.platform() as platform:
            task = await place.begun(platform)
            api = place.world.api
            api.drop_watches()
            api.store.create(("api/v1", "events", "default"), {"metadata": {"name": "e"}})
            api.store.compact()
            await until(lambda: api.requests.count(("list", "jobs")) > 2)
            assert not task.done()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await place.call(platform, "1/train/0")
            assert place.gangs.num_admitted == 1

    asyncio.run(run())


def test_workers_that_no_gang_has(tmp_path: Path) -> None:
    async def run() -> None:
        async with gangs(tmp_path) as place:
            with pytest.raises(UserError, match=r"training\.workers is 9") as error:
                place.platform(Deployment("training", workers=9))
            assert error.value.param == "training.workers"

    asyncio.run(run())
