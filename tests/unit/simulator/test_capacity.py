"""Who gets accelerators."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from simulator import clock
from simulator.cluster import Cluster, make_cluster
from simulator.platform.allotment import Allotment
from simulator.platform.capacity import Capacity, Grant, make_nodes


def two_nodes(**pool: Any) -> Cluster:
    pools = {"gpus": {"accelerator": "H100", "per_node": 4, "nodes": 2, **pool}}
    return make_cluster({"pools": pools})


def test_instances_fill_a_node_before_they_break_into_another() -> None:
    cluster = two_nodes()
    pool = cluster.pools["gpus"]
    capacity = Capacity(make_nodes([pool]))
    grants = [capacity.take(pool, 2, spot=False) for _ in range(2)]
    assert {grant.node for grant in grants if grant} == {"gpus-0"}
    assert capacity.take(pool, 4, spot=False) is not None, "a whole node is left"
    assert capacity.take(pool, 1, spot=False) is None


def test_an_instance_does_not_span_nodes_unless_it_must() -> None:
    cluster = two_nodes()
    pool = cluster.pools["gpus"]
    capacity = Capacity(make_nodes([pool]))
    assert capacity.take(pool, 3, spot=False) is not None
    assert capacity.take(pool, 3, spot=False) is not None
    assert capacity.take(pool, 2, spot=False) is None, "one is free on each node"
    whole = Capacity(make_nodes([pool])).take(pool, 8, spot=False)
    assert whole is not None
    assert [count for _, count in whole.parts] == [4, 4]


def test_what_is_given_back_can_be_taken_again() -> None:
    pool = two_nodes().pools["gpus"]
    capacity = Capacity(make_nodes([pool]))
    grant = capacity.take(pool, 8, spot=False)
    assert grant is not None
    assert capacity.take(pool, 1, spot=False) is None
    capacity.give(grant)
    assert capacity.take(pool, 8, spot=False) is not None


def test_preemptible_nodes_are_for_those_who_bear_it() -> None:
    pool = two_nodes(spot={"share": 0.5}, use_spot=True).pools["gpus"]
    capacity = Capacity(make_nodes([pool]))
    assert capacity.take(pool, 8, spot=False) is None
    cheap = capacity.take(pool, 1, spot=True)
    assert cheap is not None
    assert cheap.spot, "spot goes first for those who may"
    reserved = capacity.take(pool, 4, spot=False)
    assert reserved is not None
    assert not reserved.spot


@dataclass(eq=False)
class Asking:
    """Stands in for an instance where only its place in the queue counts."""

    name: str
    urgent: bool = True
    grant: Grant | None = None


def allotment(capacity: Capacity, idle: list[Asking], told: list[str]) -> Allotment:
    def make_room(one: Any) -> None:
        told.append(one.name)

    return Allotment(capacity, lambda i: i.urgent, lambda _: idle, make_room)  # type: ignore[arg-type,attr-defined,return-value]


def test_the_first_in_the_queue_is_served_first_even_where_later_ones_would_fit() -> None:
    async def main() -> list[str]:
        pool = two_nodes().pools["gpus"]
        capacity = Capacity(make_nodes([pool]))
        held = capacity.take(pool, 1, spot=False)
        assert held is not None
        allot = allotment(capacity, [], [])
        served: list[str] = []

        async def ask(name: str, count: int, urgent: bool = True) -> None:
            await allot.take(Asking(name, urgent), [(pool, count)], spot=False)  # type: ignore[arg-type]
            served.append(name)

        large = asyncio.create_task(ask("training", 8))
        await asyncio.sleep(0)
        small = asyncio.create_task(ask("rollout", 1))
        await asyncio.sleep(1)
        assert served == []
        allot.give(held)
        await asyncio.sleep(1)
        assert served == ["training"]
        large.cancel()
        small.cancel()
        return served

    clock.run(main())


def test_what_is_started_ahead_takes_what_nobody_else_wants() -> None:
    async def main() -> None:
        pool = two_nodes().pools["gpus"]
        capacity = Capacity(make_nodes([pool]))
        held = capacity.take(pool, 1, spot=False)
        assert held is not None
        allot = allotment(capacity, [], [])
        ahead = asyncio.create_task(allot.take(Asking("training", False), [(pool, 8)], spot=False))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.wait_for(allot.take(Asking("rollout"), [(pool, 1)], spot=False), 1)  # type: ignore[arg-type]
        assert not ahead.done()
        ahead.cancel()

    clock.run(main())


def test_no_more_idle_instances_make_room_than_must_and_each_once() -> None:
    async def main() -> None:
        pool = two_nodes().pools["gpus"]
        capacity = Capacity(make_nodes([pool]))
        idle = [Asking(f"idle-{n}", grant=capacity.take(pool, 1, spot=False)) for n in range(8)]
        told: list[str] = []
        allot = allotment(capacity, idle, told)
        wanting = asyncio.create_task(allot.take(Asking("new"), [(pool, 2)], spot=False))  # type: ignore[arg-type]
        await asyncio.sleep(1)
        assert told == ["idle-0", "idle-1"]
        allot.serve()
        assert told == ["idle-0", "idle-1"], "they are on their way"
        for one in idle[:2]:
            assert one.grant is not None
            allot.give(one.grant)
        assert (await wanting).accelerators == 2

    clock.run(main())


def test_whoever_stops_asking_leaves_the_queue() -> None:
    async def main() -> None:
        pool = two_nodes().pools["gpus"]
        capacity = Capacity(make_nodes([pool]))
        held = capacity.take(pool, 8, spot=False)
        assert held is not None
        allot = allotment(capacity, [], [])
        first = asyncio.create_task(allot.take(Asking("first"), [(pool, 8)], spot=False))  # type: ignore[arg-type]
        second = asyncio.create_task(allot.take(Asking("second"), [(pool, 1)], spot=False))  # type: ignore[arg-type]
        await asyncio.sleep(1)
        first.cancel()
        allot.give(held)
        assert (await second).accelerators == 1

    clock.run(main())
