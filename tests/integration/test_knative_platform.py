"""What only a cluster does to Services, pods and calls of the Knative platform: against stand-ins
of its API server and of Knative, with real processes as pods, or in a cluster that is given."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path

import pytest

from controller.ledger import Ledger
from controller.platforms import knative_pool
from controller.platforms.base import Deployment
from controller.platforms.knative import KnativePlatform
from controller.platforms.knative_garbage import collect
from controller.platforms.knative_settings import Owner
from controller.platforms.kube import DEPLOYMENTS, SERVICES, Object
from rlhfless.errors import CapacityError, InternalError, RlhflessError, UserError
from rlhfless.messages import Finished, Progress, RolloutDone, Tokens
from tests.support.given_cluster import only_standin
from tests.support.knative_cluster import NO_IMAGE, NOWHERE
from tests.support.knative_platforms import World, settings, world
from tests.support.processes import frames_of, rollout, until

pytestmark = pytest.mark.slow


def test_a_call_starts_a_pod_and_leaving_takes_all_away(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            async with place.platform() as platform:
                assert platform.instances() == ()
                frames = await frames_of(platform, rollout(samples=2))
                assert [type(f) for f in frames] == [Tokens, Finished, RolloutDone]
                (tokens, *_) = frames
                assert isinstance(tokens, Tokens)
                (pod,) = await place.pods()
                await until(lambda: [i.state for i in platform.instances()] == ["idle"])
                assert [i.id for i in platform.instances()] == [pod["metadata"]["name"]]
            assert await place.services() == []
            await place.no_pods()

    asyncio.run(run())


def test_entering_takes_no_node(tmp_path: Path) -> None:
    async def run() -> None:
        both = Deployment("rollout"), Deployment("training")
        async with world(tmp_path) as place, place.platform(*both) as platform:
            await until(lambda: all(route.view.url for route in platform._routes.values()))
            await asyncio.sleep(0.1)
            assert await place.pods() == []
            assert platform.instances() == ()

    asyncio.run(run())


@only_standin("what comes to its activator")
def test_a_call_is_sent_only_when_a_pod_has_room(tmp_path: Path) -> None:
    """Its time, which Knative bounds, is not spent in the activator's queue."""

    async def run() -> None:
        async with world(tmp_path) as place, place.platform() as platform:
            calls = [asyncio.create_task(frames_of(platform, rollout())) for _ in range(3)]
            await until(lambda: "/readyz" in place.cluster.passed)
            assert "/v1/rollout" not in place.cluster.passed
            await asyncio.gather(*calls)
            assert place.cluster.passed.count("/v1/rollout") == 3

    asyncio.run(run())


def test_services_belong_to_the_controllers_deployment(tmp_path: Path) -> None:
    async def run() -> None:
        told = settings().model_copy(update={"owner": Owner(name="none-such")})
        async with world(tmp_path, told=told) as place:
            with pytest.raises(UserError, match="no Deployment none-such"):
                async with place.platform():
                    pass
            owner = await _deployment(place)
            try:
                name = owner["metadata"]["name"]
                owned = place.settings.model_copy(update={"owner": Owner(name=name)})
                async with dataclasses.replace(place, settings=owned).platform():
                    (made,) = await place.services()
                    (reference,) = made["metadata"]["ownerReferences"]
                    assert reference["uid"] == owner["metadata"]["uid"]
            finally:
                await place.kube.delete(DEPLOYMENTS, owner)
            assert await place.services() == []

    asyncio.run(run())


async def _deployment(place: World) -> Object:
    """Of no pods."""
    labels = {"app": place.settings.release}
    container = {"name": "none", "image": "registry.test/none"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}
    metadata = {"name": f"{place.settings.release}-owner"}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    return await place.kube.create(DEPLOYMENTS, body, place.settings.namespace)


NO_NODE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "message": "0/9 nodes are available: 9 Insufficient nvidia.com/gpu.",
        }
    ],
}


@only_standin("the states of its pods")
@pytest.mark.parametrize(
    ("status", "family", "said"),
    [
        (NO_IMAGE, UserError, "no such image"),
        (NO_NODE, CapacityError, "Insufficient nvidia.com/gpu"),
    ],
)
def test_why_no_pod_comes_is_told(
    tmp_path: Path, status: Object, family: type[RlhflessError], said: str
) -> None:
    async def run() -> None:
        told = settings(progressDeadline="1s")
        async with world(tmp_path, told=told) as place:
            place.cluster.pod_status = lambda _: status
            async with place.platform() as platform:
                with pytest.raises(family, match=said):
                    await frames_of(platform, rollout())
                assert platform.instances() == ()  # without a node it is not paid for
            assert place.cluster.pods == []

    asyncio.run(run())


def test_a_function_that_ends_as_soon_as_it_starts(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path, app="broken") as place, place.platform() as platform:
            with pytest.raises(InternalError, match="ends as soon as it starts"):
                await frames_of(platform, rollout())

    asyncio.run(run())


@only_standin("rights are taken away")
def test_a_service_that_the_cluster_refuses(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            place.api.denied.add(("patch", "services"))
            with pytest.raises(UserError, match="cannot patch") as error:
                async with place.platform():
                    pass
            assert error.value.hint is not None and "doctor" in error.value.hint

    asyncio.run(run())


def test_spot_goes_first_and_what_is_too_much_goes_on_demand(tmp_path: Path) -> None:
    async def run() -> None:
        told = settings(spot=1)
        async with (
            world(tmp_path, told=told) as place,
            place.platform(Deployment("rollout", max_instances=2)) as platform,
        ):
            tasks = [slow(platform) for _ in range(2)]
            await until(lambda: sum(i.state == "busy" for i in platform.instances()) == 2)
            spot = [i for i in platform.instances() if "-spot-" in i.id]
            assert len(spot) == 1
            place.preempt(spot[0].id)
            await until(lambda: any(task.done() for task in tasks))
            assert [task.done() for task in tasks].count(True) == 1
            await end(tasks)

    asyncio.run(run())


def test_without_spot_nodes_on_demand_ones_serve(tmp_path: Path) -> None:
    async def run() -> None:
        told = settings(spot=4)
        for pool in told.functions["rollout"].pools:
            if pool.name == "spot":
                pool.template["spec"]["nodeSelector"] = NOWHERE
        async with world(tmp_path, told=told) as place, place.platform() as platform:
            assert len(await frames_of(platform, rollout())) == 3
            assert ["-spot-" in i.id for i in platform.instances()] == [False]

    asyncio.run(run())


@only_standin("watches are cut, versions expire")
def test_what_happens_to_the_api_does_not_happen_to_calls(tmp_path: Path) -> None:
    """Watches that end, versions that expire: the platform learns of everything all the same."""

    async def run() -> None:
        async with world(tmp_path) as place, place.platform(Deployment("rollout", 2)) as platform:
            task = slow(platform)
            await until(lambda: [i.state for i in platform.instances()] == ["busy"])
            place.api.drop_watches()
            place.api.store.create(("api/v1", "events", "default"), {"metadata": {"name": "e"}})
            place.api.store.compact()
            await until(lambda: place.api.requests.count(("list", "pods")) > 1)
            other = slow(platform)
            await until(lambda: sum(i.state == "busy" for i in platform.instances()) == 2)
            assert not task.done()
            await end([task, other])

    asyncio.run(run())


def test_a_job_is_taken_over_and_the_one_that_lost_it_leaves_it_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            lost = place.platform()
            async with lost:
                first = await frames_of(lost, rollout())
                async with place.platform() as taken:
                    before = (await place.services())[0]["metadata"]["generation"]
                    await lost.close()
                    (service,) = await place.services()
                    assert service["metadata"]["generation"] == before  # no new revision
                    assert await frames_of(taken, rollout()) == first  # the same warm pod
                assert await place.services() == []

    asyncio.run(run())


def test_what_a_crash_leaves_is_collected_by_label(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as place:
            crashed = place.platform(job="crashed")
            await crashed.__aenter__()
            await frames_of(crashed, rollout())
            for task in crashed._tasks:  # as when its process is killed
                task.cancel()
            crashed._tasks.clear()
            theirs = await _foreign_service(place)
            name, namespace = theirs["metadata"]["name"], place.settings.namespace
            try:
                async with place.platform(job="runs"):

                    async def live() -> list[str]:
                        return ["runs"]

                    removed = await collect(place.kube, place.settings, live)
                    assert len(removed) == 1
                    await place.no_pods()
                    assert len(await place.services()) == 1
                    assert await place.kube.get(SERVICES, name, namespace) is not None
            finally:
                while (left := await place.kube.get(SERVICES, name, namespace)) is not None:
                    await place.kube.delete(SERVICES, left)
            await crashed.close()

    asyncio.run(run())


async def _foreign_service(place: World) -> Object:
    """Like ours, but for its labels."""
    spec = (await place.services())[0]["spec"]
    template = spec["template"]
    told = template["metadata"]["annotations"]
    plain = {"metadata": {"annotations": told, "labels": {}}, "spec": template["spec"]}
    return await place.kube.create(
        SERVICES,
        {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Service",
            "metadata": {"name": f"{place.settings.release}-theirs", "labels": {}},
            "spec": {"template": plain},
        },
        place.settings.namespace,
    )


def test_a_service_that_somebody_deletes_is_noticed(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as place, place.platform() as platform:
            await frames_of(platform, rollout())
            while (left := await place.services()) and not await place.kube.delete(
                SERVICES, left[0]
            ):
                pass  # it changed meanwhile
            await until(lambda: platform._failure is not None)
            with pytest.raises(CapacityError, match="somebody deleted"):
                await frames_of(platform, rollout())

    asyncio.run(run())


def test_pods_are_booked_from_their_node_to_their_end(tmp_path: Path) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with world(tmp_path) as place:
            ledger = Ledger()
            began_s = loop.time()
            async with place.platform(ledger=ledger) as platform:
                await frames_of(platform, rollout())
            usage = ledger.usage(loop.time())["rollout"]
            assert 0 < usage.held_s <= loop.time() - began_s
            assert min(usage.cold_s, usage.busy_s, usage.idle_s) > 0

    asyncio.run(run())


def test_bounds_change_while_calls_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knative_pool, "_POKE_PAUSE_S", 0.02)

    async def run() -> None:
        async with world(tmp_path) as place, place.platform(Deployment("rollout", 3)) as platform:
            platform.bound("rollout", 0)
            tasks = [slow(platform) for _ in range(2)]
            await asyncio.sleep(0.2)
            assert await place.pods() == []
            platform.bound("rollout", 1)
            await until(lambda: [i.state for i in platform.instances()] == ["busy"])
            platform.bound("rollout", 2)
            await until(lambda: [i.state for i in platform.instances()] == ["busy"] * 2)
            await end(tasks)

    asyncio.run(run())


def slow(platform: KnativePlatform) -> asyncio.Task[None]:
    async def run() -> None:
        async for frame in platform.invoke(rollout("slow:0.02")):
            assert isinstance(frame, Progress | RolloutDone) or frame

    return asyncio.create_task(run())


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
