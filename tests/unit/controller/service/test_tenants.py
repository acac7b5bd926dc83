import asyncio
from collections.abc import Awaitable, Callable

import fakeredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.fencing import Fence, LostLeaseError, fence_key
from controller.ledger import Usage
from controller.service.queue import Quota
from controller.service.tenants import Limits, Tenants, Used
from rlhfless.errors import UserError

OCTOBER, NOVEMBER = 1_792_000_000.0, 1_794_600_000.0  # 2026


class World:
    def __init__(self) -> None:
        self.redis = fakeredis.FakeAsyncRedis()
        self.now_s = OCTOBER
        self.tenants = Tenants(self.redis, now=lambda: self.now_s)


def with_tenants(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await test(world)
        await world.redis.aclose()

    asyncio.run(main())


def test_who_has_no_limits_of_its_own_has_the_defaults() -> None:
    async def test(world: World) -> None:
        assert await world.tenants.limits("acme") == Limits()
        few = Tenants(world.redis, Limits(max_jobs=2))
        assert (await few.limits("acme")).max_jobs == 2
        assert (await few.limits_of(["acme"]))["acme"].of_queue() == Quota(max_jobs=2)
        assert await few.listed() == {}
        assert await few.limits_of([]) == {}

    with_tenants(test)


def test_a_change_leaves_the_other_limits_as_they_are() -> None:
    async def test(world: World) -> None:
        await world.tenants.change("acme", {"weight": 2.0, "max_usd": 10.0})
        await world.tenants.change("acme", {"max_instances": 4})
        limits = await world.tenants.change("acme", {"max_usd": None})
        assert limits == Limits(weight=2.0, max_instances=4)
        assert await world.tenants.listed() == {"acme": limits}
        assert {
            name: one.of_queue()
            for name, one in (await world.tenants.limits_of(["acme", "rival", "acme"])).items()
        } == {
            "acme": Quota(weight=2.0, max_instances=4),
            "rival": Quota(),
        }

    with_tenants(test)


@pytest.mark.parametrize(
    ("tenant", "changes"),
    [
        ("acme", {"weight": 0.0}),
        ("acme", {"weight": float("inf")}),
        ("acme", {"weight": float("nan")}),
        ("acme", {"max_jobs": -1}),
        ("acme", {"max_usd": float("nan")}),
        ("../x", {"max_usd": 1.0}),
    ],
)
def test_limits_that_cannot_be_are_refused(tenant: str, changes: dict[str, float]) -> None:
    async def test(world: World) -> None:
        with pytest.raises(UserError):
            await world.tenants.change(tenant, changes)
        assert await world.tenants.listed() == {}

    with_tenants(test)


def test_totals_are_booked_once_into_their_month() -> None:
    async def test(world: World) -> None:
        tenants = world.tenants
        usage = {"rollout": Usage(busy_s=10.0, usd=1.0), "reward": Usage(idle_s=2.0, usd=None)}
        booked = [await tenants.book("acme", "job-1", usage) for _ in range(3)]
        assert booked == [12.0, 0.0, 0.0]
        await tenants.book("acme", "job-1", {"rollout": Usage(busy_s=4.0, usd=0.5)})  # an older one
        await tenants.book("acme", "job-2", {"rollout": Usage(cold_s=1.0, usd=0.25)})
        expected = Used(function_seconds=13.0, usd=1.25, unpriced_seconds=2.0)
        assert await tenants.usage("acme") == expected
        world.now_s = NOVEMBER
        assert await tenants.usage("acme") == Used()
        await tenants.book("acme", "job-1", {"rollout": Usage(busy_s=15.0, usd=1.5)})
        assert await tenants.usage("acme") == Used(function_seconds=3.0, usd=0.5)
        assert await tenants.usage("acme", "2026-10") == expected
        assert await tenants.usage("rival") == Used()

    with_tenants(test)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000)), max_size=20))
def test_a_month_holds_the_largest_total_of_each_job(totals: list[tuple[int, int]]) -> None:
    async def test(world: World) -> None:
        largest: dict[int, int] = {}
        for job, total in totals:
            await world.tenants.book(
                "acme", f"job-{job}", {"x": Usage(float(total), usd=total / 4)}
            )
            largest[job] = max(largest.get(job, 0), total)
        used = await world.tenants.usage("acme")
        assert used.function_seconds == sum(largest.values())
        assert used.usd == sum(largest.values()) / 4

    with_tenants(test)


def test_a_replica_that_lost_its_lease_books_nothing() -> None:
    async def test(world: World) -> None:
        old, new = Fence(1, "a"), Fence(2, "b")
        await world.redis.set(fence_key("job-1"), str(new))
        usage = {"rollout": Usage(busy_s=1.0)}
        with pytest.raises(LostLeaseError):
            await world.tenants.book("acme", "job-1", usage, old)
        assert await world.tenants.usage("acme") == Used()
        await world.tenants.book("acme", "job-1", usage, new)
        assert (await world.tenants.usage("acme")).function_seconds == 1.0

    with_tenants(test)


def test_a_quota_is_reached_by_either_measure() -> None:
    async def test(world: World) -> None:
        tenants = world.tenants

        async def over() -> str | None:
            return (await tenants.over_quota(await tenants.limits_of(["acme", "b"]))).get("acme")

        await tenants.book("acme", "job-1", {"rollout": Usage(busy_s=10.0, usd=1.0)})
        assert await over() is None
        await tenants.change("acme", {"max_function_seconds": 10.5, "max_usd": 1.5})
        assert await over() is None
        await tenants.change("acme", {"max_function_seconds": 10.0})
        assert "10 function-seconds it may use in 2026-10" in str(await over())
        await tenants.change("acme", {"max_function_seconds": None, "max_usd": 1.0})
        assert "1 USD it may spend in 2026-10" in str(await over())
        world.now_s = NOVEMBER
        assert await over() is None

    with_tenants(test)
