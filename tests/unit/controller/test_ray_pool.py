"""Calls that wait for a replica of Ray, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from controller.platforms.base import Deployment
from controller.platforms.ray_pool import RayPool
from controller.platforms.ray_replicas import Replica
from rlhfless.errors import CapacityError, InternalError
from rlhfless.ray_apps import RayAppState, Resources
from simulator import clock

NODE = {"CPU": 8.0, "memory": 1e9}


def pool(most: int = 2, *, elastic: bool = True, **resources: Any) -> RayPool:
    deployment = Deployment("rollout", max_instances=most)
    return RayPool(deployment, Resources(**resources), 60.0, elastic=elastic)


def ready() -> Replica:
    return Replica("rollout-a", "rollout", "ready", 0.0)


def run(work: Coroutine[Any, Any, None]) -> None:
    clock.run(work)


def test_what_is_above_the_bound_waits_here_in_order() -> None:
    async def go() -> None:
        under, order = pool(2), []

        async def call(number: int, *, first: bool = False) -> None:
            await under.enter(first=first)
            order.append(number)
            await asyncio.sleep(1)
            under.leave()

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(call(number))
            await asyncio.sleep(0.5)
            group.create_task(call(9, first=True))
        assert order == [0, 1, 9, 2]
        assert under.idle

    run(go())


def test_a_call_that_is_given_up_leaves_its_place() -> None:
    async def go() -> None:
        under = pool(1)
        await under.enter(first=False)
        waiting = asyncio.create_task(under.enter(first=False))
        await asyncio.sleep(0)
        waiting.cancel()
        under.leave()
        await asyncio.gather(waiting, return_exceptions=True)
        await under.enter(first=False)

    run(go())


async def _fails(under: RayPool, replicas: list[Replica], within_s: float) -> Exception:
    """The error of a call that was sent and finds nobody."""
    loop = asyncio.get_running_loop()
    sent = asyncio.create_task(under.placed(asyncio.sleep(1000)))
    give_up_s = loop.time() + within_s
    while not sent.done() and loop.time() < give_up_s:
        await asyncio.sleep(0.5)
        under.check(replicas, NODE)
    error = sent.exception()
    assert isinstance(error, Exception)
    return error


def test_what_no_node_can_hold_is_told_at_once_where_none_is_added() -> None:
    async def go() -> None:
        error = await _fails(pool(elastic=False, num_gpus=1, custom={"spot": 1.0}), [], 1)
        assert isinstance(error, CapacityError)
        assert "1 GPU and no node has more than 0; it asks for 1 spot" in error.detail

    run(go())


def test_where_nodes_may_be_added_they_are_waited_for() -> None:
    async def go() -> None:
        under = pool(num_gpus=1)
        under.told = RayAppState(name="x", trouble="Ray's own words")
        error = await _fails(under, [], 62)
        assert isinstance(error, CapacityError)
        assert "1 GPU" in error.detail
        assert "Ray's own words" in error.detail
        assert asyncio.get_running_loop().time() >= 60

    run(go())


def test_what_does_not_start_is_told_with_its_reason() -> None:
    async def go() -> None:
        under = pool()
        under.told = RayAppState(name="x", failing=True, trouble="No module named 'x'")
        error = await _fails(under, [], 1)
        assert isinstance(error, InternalError)
        assert "No module named 'x'" in error.detail

    run(go())


def test_a_ready_replica_is_hope() -> None:
    async def go() -> None:
        under = pool(elastic=False, num_gpus=1)
        sent = asyncio.create_task(under.placed(asyncio.sleep(100, "frame")))
        for _ in range(10):
            await asyncio.sleep(0.5)
            assert not under.check([ready()], NODE)
        assert await sent == "frame"

    run(go())


def test_closing_ends_all_waiting() -> None:
    async def go() -> None:
        under = pool(1)
        sent = asyncio.create_task(under.placed(asyncio.sleep(100)))
        await under.enter(first=False)
        waiting = asyncio.create_task(under.enter(first=False))
        await asyncio.sleep(0)
        under.fail(CapacityError("closing"))
        for task in (sent, waiting):
            with pytest.raises(CapacityError):
                await task

    run(go())
