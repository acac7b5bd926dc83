"""Which instance gets a call, and how many are started for those who wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest

from controller.platforms.base import Deployment, InstanceState
from controller.platforms.local_instance import LocalInstance
from controller.platforms.local_pool import Pool
from rlhfless.errors import CapacityError


@dataclass
class Standin:
    """What a pool looks at of an instance."""

    id: str
    state: InstanceState = "idle"
    calls: int = 0
    last_used_s: float = 0.0
    retiring: bool = False
    leaving: bool = False
    size: int = 1

    @property
    def ready(self) -> bool:
        return self.state != "cold"

    @property
    def stopping(self) -> bool:
        return self.state == "stopping"

    @property
    def has_room(self) -> bool:
        return self.state in ("idle", "busy") and self.calls < self.size


def pool_of(*instances: Standin, max_instances: int = 9, concurrency: int = 1) -> Pool:
    pool = Pool(Deployment("rollout", max_instances=max_instances, concurrency=concurrency))
    for instance in instances:
        instance.size = concurrency
        pool.instances[instance.id] = cast(LocalInstance, instance)
    return pool


def picked(pool: Pool) -> str | None:
    instance = pool.pick()
    return None if instance is None else instance.id


def waiting(pool: Pool, count: int) -> list[asyncio.Future[Any]]:
    loop = asyncio.new_event_loop()
    futures = [loop.create_future() for _ in range(count)]
    loop.close()
    pool.waiting.extend(futures)
    return futures


def test_nothing_is_picked_where_nothing_has_room() -> None:
    assert picked(pool_of()) is None
    pool = pool_of(Standin("a", "cold"), Standin("b", "stopping"), Standin("c", "busy", calls=1))
    assert picked(pool) is None


def test_the_least_busy_is_picked() -> None:
    pool = pool_of(Standin("a", "busy", calls=2), Standin("b", "busy", calls=1), concurrency=3)
    assert picked(pool) == "b"


def test_among_equals_the_one_used_last_is_picked() -> None:
    pool = pool_of(*(Standin(n, last_used_s=t) for n, t in (("a", 1.0), ("b", 3.0), ("c", 2.0))))
    assert picked(pool) == "b"


def test_one_that_is_to_go_is_picked_last() -> None:
    going = Standin("a", "busy", retiring=True)
    assert picked(pool_of(going, Standin("b", "busy", calls=1), concurrency=2)) == "b"
    assert picked(pool_of(going)) == "a"


@pytest.mark.parametrize(
    ("num_waiting", "cold", "concurrency", "max_instances", "missing"),
    [
        (0, 0, 1, 9, 0),
        (3, 0, 1, 9, 3),
        (3, 1, 1, 9, 2),
        (3, 3, 1, 9, 0),
        (3, 5, 1, 9, 0),
        (3, 0, 2, 9, 2),
        (3, 1, 2, 9, 1),
        (5, 0, 1, 2, 2),
        (5, 1, 1, 2, 1),
        (5, 2, 1, 2, 0),
    ],
)
def test_as_many_are_started_as_those_who_wait_need(
    num_waiting: int, cold: int, concurrency: int, max_instances: int, missing: int
) -> None:
    instances = [Standin(str(i), "cold") for i in range(cold)]
    pool = pool_of(*instances, max_instances=max_instances, concurrency=concurrency)
    waiting(pool, num_waiting)
    assert pool.num_missing == missing


def test_one_that_stops_still_holds_its_place() -> None:
    pool = pool_of(Standin("a", "stopping"), max_instances=1)
    waiting(pool, 1)
    assert pool.num_missing == 0


@pytest.mark.parametrize(
    ("owed", "num_waiting", "stopping", "missing"),
    [(2, 0, 0, 2), (2, 1, 0, 2), (1, 2, 0, 2), (3, 0, 2, 2), (3, 0, 4, 0)],
)
def test_what_is_owed_is_started_as_room_allows_and_serves_those_who_wait(
    owed: int, num_waiting: int, stopping: int, missing: int
) -> None:
    pool = pool_of(*(Standin(str(i), "stopping") for i in range(stopping)), max_instances=4)
    waiting(pool, num_waiting)
    pool.owed = owed
    assert pool.num_missing == missing


def test_none_is_started_while_starts_are_paused() -> None:
    pool = pool_of()
    waiting(pool, 2)
    pool.paused = True
    assert pool.num_missing == 0


def test_those_who_gave_up_are_passed_over() -> None:
    pool = pool_of()
    first, second = waiting(pool, 2)
    first.cancel()
    assert pool.num_missing == 1
    assert pool.next_waiting() is second
    assert pool.next_waiting() is None


def test_all_who_wait_hear_of_a_failure() -> None:
    async def run() -> None:
        pool = pool_of()
        futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
        pool.waiting.extend(futures)
        futures[0].cancel()
        pool.fail_waiting(CapacityError("full"))
        with pytest.raises(CapacityError, match="full"):
            await futures[1]
        assert not pool.waiting

    asyncio.run(run())


@pytest.mark.parametrize(("most", "limit"), [(None, 3), (9, 3), (3, 3), (2, 2), (0, 0), (-1, 0)])
def test_a_bound_lowers_the_limit_and_never_raises_it(most: int | None, limit: int) -> None:
    pool = pool_of(max_instances=3)
    pool.most = most
    assert pool.limit == pool.room == limit
    waiting(pool, 9)
    assert pool.num_missing == limit


def leaving(pool: Pool) -> set[str]:
    pool.mark_leaving()
    return {name for name, instance in pool.instances.items() if instance.leaving}


def test_who_leaves_first() -> None:
    pool = pool_of(
        Standin("busy", "busy", calls=2),
        Standin("less busy", "busy", calls=1),
        Standin("recent", last_used_s=5.0),
        Standin("old", last_used_s=1.0),
        Standin("cold", "cold"),
        Standin("gone", "stopping"),
        concurrency=2,
    )
    expected: set[str] = set()
    assert leaving(pool) == expected
    for most, name in ((4, "cold"), (3, "old"), (2, "recent"), (1, "less busy"), (0, "busy")):
        pool.most = most
        expected.add(name)
        assert leaving(pool) == expected
    pool.most = None
    assert leaving(pool) == set()


def test_who_leaves_stays_the_same_while_it_is_at_work() -> None:
    first, second = Standin("a", "busy", calls=1), Standin("b", "busy", calls=2)
    pool = pool_of(first, second, concurrency=3)
    pool.most = 1
    assert leaving(pool) == {"a"}
    first.calls, second.calls = 3, 1
    assert leaving(pool) == {"a"}
    second.state = "stopping"  # it died: nobody else is left
    assert leaving(pool) == set()


def test_a_pool_that_closes_has_no_room() -> None:
    pool = pool_of()
    waiting(pool, 1)
    assert pool.hungry
    pool.closing = True
    assert not pool.hungry
    assert pool.num_missing == 0


def test_a_pool_is_hungry_though_others_are_on_their_way() -> None:
    pool = pool_of(Standin("a", "cold"), max_instances=2)
    assert not pool.hungry
    waiting(pool, 1)
    assert pool.num_missing == 0
    assert pool.hungry
    pool.most = 1
    assert not pool.hungry
