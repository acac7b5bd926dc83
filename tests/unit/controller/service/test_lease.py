"""Time is virtual; Redis's own clock is not, so a test that needs a lease to expire deletes it."""

import asyncio
from collections.abc import Awaitable, Callable

import fakeredis
import pytest

from controller.fencing import Fence, LostLeaseError, fence_key
from controller.job_store import JobStore
from controller.journal import StepRecord
from controller.service.lease import RENEWALS_A_TTL, Lease, Leases
from simulator.clock import run

TTL_S = 1000.0


class World:
    """Two replicas at one Redis."""

    def __init__(self) -> None:
        self.server = fakeredis.FakeServer()
        self.redis = [fakeredis.FakeAsyncRedis(server=self.server) for _ in range(2)]
        self.a, self.b = (
            Leases(redis, name, TTL_S) for name, redis in zip("ab", self.redis, strict=True)
        )

    async def expire(self) -> None:
        await self.redis[0].delete("rlhfless:{job}:lease")

    async def taken(self, leases: Leases) -> Lease:
        lease = await leases.acquire("job")
        assert lease is not None
        return lease

    def store(self, replica: int, lease: Lease) -> JobStore:
        return JobStore(self.redis[replica], "job", lease.fence)


def with_world(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await test(world)
        world.server.connected = True
        for redis in world.redis:
            await redis.aclose()

    run(main())


def record(step: int) -> StepRecord:
    return StepRecord(step=step, version=step + 1, metrics={}, position={})


def test_one_replica_holds_a_job() -> None:
    async def test(world: World) -> None:
        lease = await world.taken(world.a)
        assert lease.fence.token == 1
        assert await world.b.acquire("job") is None
        assert await world.a.acquire("job") is None  # not twice by one replica either
        assert await world.b.holder("job") == lease.fence
        assert await world.b.acquire("other") is not None

    with_world(test)


def test_of_many_that_ask_at_once_one_gets_it() -> None:
    async def test(world: World) -> None:
        asked = [leases.acquire("job") for leases in (world.a, world.b) for _ in range(5)]
        granted = [lease for lease in await asyncio.gather(*asked) if lease is not None]
        assert len(granted) == 1
        assert granted[0].fence.token == 1

    with_world(test)


def test_tokens_grow_with_every_grant() -> None:
    async def test(world: World) -> None:
        tokens = []
        for leases in (world.a, world.b, world.a):
            lease = await world.taken(leases)
            tokens.append(lease.fence.token)
            await leases.release(lease)
        assert tokens == [1, 2, 3]
        assert await world.a.holder("job") is None

    with_world(test)


def test_a_lease_that_ran_out_can_be_taken_over_and_not_renewed_after() -> None:
    async def test(world: World) -> None:
        old = await world.taken(world.a)
        await world.expire()
        new = await world.taken(world.b)
        with pytest.raises(LostLeaseError):
            await world.a.renew(old)
        await world.a.release(old)  # changes nothing
        assert await world.a.holder("job") == new.fence

    with_world(test)


def test_a_lease_that_ran_out_and_that_nobody_took_goes_on() -> None:
    async def test(world: World) -> None:
        lease = await world.taken(world.a)
        await world.expire()
        await asyncio.sleep(5.0)
        renewed = await world.a.renew(lease)
        assert renewed.fence == lease.fence
        assert renewed.until_s == lease.until_s + 5.0
        assert await world.b.acquire("job") is None

    with_world(test)


def test_keeping_renews_for_as_long_as_the_work_takes() -> None:
    async def test(world: World) -> None:
        lease = await world.taken(world.a)
        async with world.a.keeping(lease):
            for _ in range(10):
                await asyncio.sleep(TTL_S)
                assert await world.b.acquire("job") is None
            await world.expire()
            await asyncio.sleep(TTL_S / RENEWALS_A_TTL + 1)
            assert await world.b.holder("job") == lease.fence
        assert await world.b.holder("job") is None

    with_world(test)


def test_work_stops_when_another_has_taken_the_lease() -> None:
    async def test(world: World) -> None:
        lease = await world.taken(world.a)
        stopped_s = None
        with pytest.raises(LostLeaseError):
            async with world.a.keeping(lease):
                await world.expire()
                new = await world.taken(world.b)
                begin_s = asyncio.get_running_loop().time()
                try:
                    await asyncio.sleep(100 * TTL_S)
                finally:
                    stopped_s = asyncio.get_running_loop().time() - begin_s
        assert stopped_s == pytest.approx(TTL_S / RENEWALS_A_TTL)
        assert await world.b.holder("job") == new.fence

    with_world(test)


def test_work_stops_before_a_lease_that_cannot_be_renewed_runs_out() -> None:
    async def test(world: World) -> None:
        lease = await world.taken(world.a)
        loop = asyncio.get_running_loop()
        with pytest.raises(LostLeaseError):
            async with world.a.keeping(lease):
                await asyncio.sleep(TTL_S / RENEWALS_A_TTL + 1)  # renewed once
                renewed_s = TTL_S / RENEWALS_A_TTL
                world.server.connected = False
                try:
                    await asyncio.sleep(100 * TTL_S)
                finally:
                    stopped_s = loop.time() - (lease.until_s - TTL_S)
        assert stopped_s == pytest.approx(renewed_s + TTL_S)

    with_world(test)


def test_a_short_outage_is_survived() -> None:
    async def test(world: World) -> None:
        lease = await world.taken(world.a)
        async with world.a.keeping(lease):
            world.server.connected = False
            await asyncio.sleep(TTL_S / 2)
            world.server.connected = True
            await asyncio.sleep(10 * TTL_S)
            assert await world.b.acquire("job") is None

    with_world(test)


@pytest.mark.parametrize("error", [ValueError("ours"), TimeoutError("ours")])
def test_what_the_work_raises_is_raised_and_the_lease_given_up(error: Exception) -> None:
    async def test(world: World) -> None:
        lease = await world.taken(world.a)
        with pytest.raises(type(error), match="ours"):
            async with world.a.keeping(lease):
                raise error
        assert await world.b.acquire("job") is not None

    with_world(test)


def test_who_is_cancelled_gives_the_lease_up() -> None:
    async def test(world: World) -> None:
        lease = await world.taken(world.a)

        async def work() -> None:
            async with world.a.keeping(lease):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert await world.b.acquire("job") is not None
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with_world(test)


def test_two_replicas_racing_commit_each_step_once() -> None:
    """The old one sleeps through the loss of its lease and goes on where it was."""

    async def test(world: World) -> None:
        old = await world.taken(world.a)
        await world.store(0, old).commit(record(0), b"a0")
        await world.expire()
        new = await world.taken(world.b)
        results = await asyncio.gather(
            world.store(0, old).commit(record(1), b"a1"),
            world.store(1, new).commit(record(1), b"b1"),
            return_exceptions=True,
        )
        assert isinstance(results[0], LostLeaseError)
        assert results[1] is None
        await world.store(1, new).commit(record(2), b"b2")
        with pytest.raises(LostLeaseError):
            await world.store(0, old).commit(record(3), b"a3")
        assert [r.step for r in await world.store(1, new).records()] == [0, 1, 2]
        assert await world.store(1, new).policy_state() == b"b2"

    with_world(test)


def test_a_redis_that_forgot_the_last_grant_does_not_confuse_two_holders() -> None:
    async def test(world: World) -> None:
        first = await world.taken(world.a)
        await world.redis[0].delete(fence_key("job"), "rlhfless:{job}:lease")
        second = await world.taken(world.b)
        assert first.fence.token == second.fence.token
        with pytest.raises(LostLeaseError):
            await world.store(0, first).note(status="failed")
        await world.store(1, second).note(status="running")

    with_world(test)


def test_a_fence_survives_its_text() -> None:
    fence = Fence(12, "host 1/ab")
    assert Fence.parse(str(fence).encode()) == fence
