"""Knative Services that jobs use together: who makes one, who uses it, who takes it away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable
from pathlib import Path

import pytest

from controller.ledger import Ledger
from controller.platforms.base import Deployment, Platform
from controller.platforms.knative import KnativePlatform
from controller.platforms.knative_garbage import collect
from controller.platforms.knative_sharing import Mark, leave, marks_of
from rlhfless.errors import RlhflessError
from rlhfless.messages import FunctionName, RewardDone, RewardRequest
from tests.support.given_cluster import only_standin
from tests.support.knative_platforms import World, settings, world
from tests.support.kube_api import Object
from tests.support.processes import call_info, frames_of, until

pytestmark = [pytest.mark.slow, only_standin("objects of its API server are looked at")]
SERVICES = ("apis/serving.knative.dev/v1", "services", "default")
MODEL: dict[FunctionName, Hashable] = {"reward": ("ada", ("a model",))}
LONG = settings(function={"scaleDownDelay": "60s"})


def reward(store: Path, behaviour: str = "echo", name: str = "0/reward/0") -> RewardRequest:
    return RewardRequest(
        call=call_info(behaviour, store, name),
        functions=[],
        sample_ids=[],
        prompts=[],
        completions=[],
        completion_ids=[],
    )


async def pid_of(platform: Platform, store: Path, name: str) -> float:
    """Of the process that serves a call; the probe tells it as a score."""
    frames = await frames_of(platform, reward(store, name=name))  # type: ignore[arg-type]
    (done,) = (frame for frame in frames if isinstance(frame, RewardDone))
    assert done.scores[0][0] is not None
    return done.scores[0][0]


def services(place: World) -> list[Object]:
    return place.api.store.all(SERVICES)


def of(place: World, job: str, ledger: Ledger | None = None) -> KnativePlatform:
    deployed = Deployment("reward")
    return place.platform(deployed, job=job, ledger=ledger, kinds=MODEL)


async def crash(platform: KnativePlatform) -> None:
    """As when its process is killed."""
    for task in platform._tasks:
        task.cancel()
    await asyncio.gather(*platform._tasks, return_exceptions=True)
    platform._tasks.clear()


def test_two_jobs_use_one_service_and_the_last_takes_it_away(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path, told=LONG) as place:
            async with of(place, "job-2") as second:
                async with of(place, "job-1") as first:
                    served = await pid_of(first, tmp_path, "1/reward/0")
                    (service,) = services(place)
                    assert {mark.job for mark in marks_of(service)} == {"job-1", "job-2"}
                    assert await pid_of(second, tmp_path, "2/reward/0") == served
                    assert place.cluster.num_started == 1
                (service,) = services(place)
                assert {mark.job for mark in marks_of(service)} == {"job-2"}
                assert first.instances() == ()
                assert await pid_of(second, tmp_path, "2/reward/1") == served
                assert service["metadata"]["generation"] == 1  # no revision for who comes or goes
            assert not any(place.api.store.objects.values())

    asyncio.run(run())


def test_jobs_of_other_tenants_or_models_or_settings_share_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        kinds: list[Hashable] = [("ada", ("a model",)), ("bob", ("a model",)), ("ada", ("other",))]
        async with world(tmp_path) as place, contextlib.AsyncExitStack() as stack:
            for number, kind in enumerate(kinds):
                one = place.platform(
                    Deployment("reward"), job=f"job-{number}", kinds={"reward": kind}
                )
                await stack.enter_async_context(one)
            threads = Deployment("reward", threads=2)
            four = place.platform(threads, job="job-4", kinds={"reward": kinds[0]})
            await stack.enter_async_context(four)
            assert len({item["metadata"]["name"] for item in services(place)}) == 4
            assert all(len(marks_of(item)) == 1 for item in services(place))

    asyncio.run(run())


def test_what_changes_over_a_job_is_its_own(tmp_path: Path) -> None:
    async def run() -> None:
        kinds: dict[FunctionName, Hashable] = {"rollout": ("ada", "m"), **MODEL}
        both = Deployment("rollout"), Deployment("reward")
        async with (
            world(tmp_path) as place,
            place.platform(*both, job="job-1", kinds=kinds),
            place.platform(*both, job="job-2", kinds=kinds),
        ):
            names = [item["metadata"]["name"] for item in services(place)]
            assert sorted(name.split("-")[-1] for name in names) == ["reward", "rollout", "rollout"]

    asyncio.run(run())


def test_a_pod_full_of_anothers_calls_is_waited_for_or_another_comes(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            world(tmp_path, told=LONG) as place,
            of(place, "job-1") as first,
            of(place, "job-2") as second,
        ):
            keeping = frames_of(first, reward(tmp_path, "slow:0.02"))  # type: ignore[arg-type]
            task = asyncio.create_task(keeping)
            await until(lambda: [i.state for i in first.instances()] == ["busy"])
            await pid_of(second, tmp_path, "2/reward/0")
            assert not task.done()
            assert place.cluster.num_started == 2
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(run())


def test_who_leaves_ends_its_calls_and_frees_the_pod(tmp_path: Path) -> None:
    async def run() -> None:
        one = settings(function={"scaleDownDelay": "60s"})
        for pods in one.functions.values():
            pods.pools[:] = [pods.pools[0].model_copy(update={"max_instances": 1})]
        async with world(tmp_path, told=one) as place, of(place, "job-2") as second:
            async with of(place, "job-1") as first:
                keeping = frames_of(first, reward(tmp_path, "slow:0.02"))  # type: ignore[arg-type]
                task = asyncio.create_task(keeping)
                await until(lambda: [i.state for i in first.instances()] == ["busy"])
            await asyncio.wait({task}, timeout=20)
            assert isinstance(task.exception(), RlhflessError)
            await pid_of(second, tmp_path, "2/reward/0")
            assert place.cluster.num_started == 1

    asyncio.run(run())


def test_a_pod_is_paid_for_once(tmp_path: Path) -> None:
    """In equal parts by who uses it: the jobs' books add up to what is held."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        mine, theirs = Ledger(), Ledger()
        async with world(tmp_path, told=LONG) as place, of(place, "job-1", mine) as first:
            await pid_of(first, tmp_path, "1/reward/0")
            alone_s = loop.time()
            assert mine.usage(alone_s)["reward"].held_s > 0
            async with of(place, "job-2", theirs) as second:
                await until(lambda: bool(second.instances()))
                await until(lambda: {s.weight for s in mine.all_spans(loop.time())} == {1, 0.5})
                both_s = loop.time()
                await asyncio.sleep(0.3)
                now_s = loop.time()
                parts = [book.usage(now_s, both_s)["reward"].held_s for book in (mine, theirs)]
                assert sum(parts) == pytest.approx(now_s - both_s)
                assert parts[0] == pytest.approx(parts[1])
            left_s = loop.time()
            assert theirs.usage(left_s + 100) == theirs.usage(left_s)
            await until(lambda: mine.all_spans(loop.time())[-1].weight == 1)

    asyncio.run(run())


def test_the_mark_of_a_job_that_crashed_is_swept(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path, told=LONG) as place:
            running = {"job-2"}

            async def live() -> set[str]:
                return running

            crashed = of(place, "job-1")
            await crashed.__aenter__()
            async with of(place, "job-2") as second:
                await crash(crashed)
                assert await collect(place.kube, place.settings, live) == []
                (service,) = services(place)
                assert [mark.job for mark in marks_of(service)] == ["job-2"]
                await pid_of(second, tmp_path, "2/reward/0")
                await crash(second)
                running.clear()
                assert await collect(place.kube, place.settings, live) == [
                    service["metadata"]["name"]
                ]
            await until(lambda: place.cluster.pods == [])
            await crashed.close()

    asyncio.run(run())


def test_who_lost_a_job_leaves_its_mark_to_who_has_it_now(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path, told=LONG) as place, of(place, "job-2"):
            lost = of(place, "job-1")
            async with lost, of(place, "job-1") as taken:
                await lost.close()
                (service,) = services(place)
                marks = marks_of(service)
                assert Mark("job-1", taken.holder) in marks
                assert len(marks) == 2

    asyncio.run(run())


def test_a_job_that_joins_while_the_last_leaves_keeps_the_service(tmp_path: Path) -> None:
    """The one that leaves has seen nobody else; the version that it saw is no more."""

    async def run() -> None:
        async with world(tmp_path) as place, contextlib.AsyncExitStack() as stack:
            first = of(place, "job-1")
            await first.__aenter__()
            (service,) = services(place)
            read = place.kube.get

            async def joined_meanwhile(*arguments: str) -> Object | None:
                found = await read(*arguments)  # type: ignore[arg-type]
                if len(marks_of(found or service)) == 1:
                    await stack.enter_async_context(of(place, "job-2"))
                return found

            place.kube.get = joined_meanwhile  # type: ignore[method-assign, assignment]
            name = service["metadata"]["name"]
            gone = await leave(place.kube, "default", name, Mark("job-1", first.holder))
            place.kube.get = read  # type: ignore[method-assign]
            assert not gone
            (left,) = services(place)
            assert [mark.job for mark in marks_of(left)] == ["job-2"]
            assert left["spec"] == service["spec"]
            await first.close()

    asyncio.run(run())


def test_two_that_leave_at_once_leave_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            several = [of(place, f"job-{number}") for number in range(5)]
            await asyncio.gather(*(one.__aenter__() for one in several))
            assert len(services(place)) == 1
            await asyncio.gather(*(one.close() for one in several))
            assert services(place) == []

    asyncio.run(run())
