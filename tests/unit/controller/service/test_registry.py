import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import fakeredis
import pytest

from controller.fencing import Fence, LostLeaseError, fence_key
from controller.job_store import JobStore
from controller.journal import StepRecord
from controller.service.events import Events, JobEndedError, JobEvent
from controller.service.lease import Leases
from controller.service.records import JobRecord, Setback
from controller.service.registry import Registry
from controller.service.states import State
from rlhfless.errors import ConflictError, NotFoundError, UserError

SPEC = {"name": "demo", "seed": 0, "training": {"steps": 3}}


def with_registry(test: Callable[[Registry, fakeredis.FakeAsyncRedis], Awaitable[None]]) -> None:
    """Time is 1, 2, 3, ... seconds, one more whenever it is asked for."""

    async def main() -> None:
        redis = fakeredis.FakeAsyncRedis()
        seconds = itertools.count(1)
        await test(Registry(redis, now=lambda: float(next(seconds))), redis)
        await redis.aclose()

    asyncio.run(main())


async def told(redis: fakeredis.FakeAsyncRedis, job: str) -> list[Any]:
    events = (await Events(redis).read(job)).data
    return [(found.type, found.data["state"], found.data["reason"]) for found in events]


def test_a_job_begins_in_the_queue() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        job = await registry.create("acme", SPEC)
        assert (job.state, job.created_at, job.updated_at, job.reason) == ("queued", 1, 1, None)
        assert await registry.get("acme", job.id) == job
        assert await registry.open_jobs() == [job]
        assert await told(redis, job.id) == [("state", "queued", None)]

    with_registry(test)


def test_each_state_has_its_time_and_reason() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        job = await registry.create("acme", SPEC)
        await registry.move("acme", job.id, "running")
        failed = await registry.move("acme", job.id, "failed", "the reward raised ValueError")
        assert (failed.state, failed.updated_at) == ("failed", 3)
        assert failed.reason == "the reward raised ValueError"
        assert {state: entry.at for state, entry in failed.entered.items()} == {
            "queued": 1,
            "running": 2,
            "failed": 3,
        }
        assert await registry.get("acme", job.id) == failed
        assert await told(redis, job.id) == [
            ("state", "queued", None),
            ("state", "running", None),
            ("state", "failed", "the reward raised ValueError"),
        ]
        assert (await Events(redis).read(job.id)).data[-1].level == "error"

    with_registry(test)


def test_what_has_ended_stays_ended() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        job = await registry.create("acme", SPEC)
        ended = await registry.move("acme", job.id, "cancelled")
        assert await registry.open_jobs() == []
        with pytest.raises(ConflictError, match="is cancelled: it cannot become running"):
            await registry.move("acme", job.id, "running")
        assert await registry.move("acme", job.id, "cancelled", "again") == ended
        assert len(await told(redis, job.id)) == 2

    with_registry(test)


def test_of_two_ends_one_wins() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        for _ in range(5):
            job = await registry.create("acme", SPEC)
            await registry.move("acme", job.id, "running")
            ends: list[State] = ["succeeded", "cancelled", "failed"]
            results = await asyncio.gather(
                *(registry.move("acme", job.id, end) for end in ends), return_exceptions=True
            )
            won = [r for r in results if isinstance(r, JobRecord)]
            lost = [r for r in results if isinstance(r, ConflictError)]
            assert (len(won), len(lost)) == (1, 2)
            assert await registry.get("acme", job.id) == won[0]
            assert [t[1] for t in await told(redis, job.id)] == ["queued", "running", won[0].state]

    with_registry(test)


def test_another_tenants_job_is_not_there() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        job = await registry.create("acme", SPEC)
        with pytest.raises(NotFoundError) as missing:
            await registry.get("rival", "job-" + "0" * 28)
        for attempt in (
            registry.get("rival", job.id),
            registry.move("rival", job.id, "cancelled"),
        ):
            with pytest.raises(NotFoundError) as caught:
                await attempt
            assert caught.value.detail.replace(job.id, "job-" + "0" * 28) == missing.value.detail
        assert (await registry.listed("rival")).data == []
        assert await registry.get("acme", job.id) == job

    with_registry(test)


@pytest.mark.parametrize("limit", [1, 2, 7, 8])
def test_pages_of_jobs_join_newest_first(limit: int) -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        jobs = [await registry.create("acme", SPEC) for _ in range(7)]
        await registry.create("rival", SPEC)
        after, seen, more = None, [], True
        while more:
            page = await registry.listed("acme", after, limit)
            assert len(page.data) <= limit
            seen += page.data
            after, more = page.data[-1].id, page.has_more
            await registry.create("acme", SPEC)  # newer ones do not disturb who reads older ones
        assert seen[:7] == jobs[::-1]

    with_registry(test)


@pytest.mark.parametrize("id_", ["", "job-1", "x}:lease", "job-" + "G" * 28, "job-" + "0" * 29])
def test_what_is_no_jobs_id_is_not_found(id_: str) -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        for attempt in (
            registry.get("acme", id_),
            registry.move("acme", id_, "cancelled"),
            registry.listed("acme", after=id_),
        ):
            with pytest.raises(NotFoundError):
                await attempt

    with_registry(test)


@pytest.mark.parametrize("limit", [0, -1, 101])
def test_a_page_has_a_size(limit: int) -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        with pytest.raises(UserError, match="1 to 100"):
            await registry.listed("acme", limit=limit)

    with_registry(test)


def test_the_same_key_and_spec_give_the_first_answer() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        first = await registry.create("acme", SPEC, "key")
        await registry.move("acme", first.id, "running")
        shuffled = dict(reversed(SPEC.items()))
        assert await registry.create("acme", shuffled, "key") == first
        assert len((await registry.listed("acme")).data) == 1
        assert len(await told(redis, first.id)) == 2

    with_registry(test)


def test_the_same_key_with_another_spec_is_a_conflict() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        await registry.create("acme", SPEC, "key")
        with pytest.raises(ConflictError) as caught:
            await registry.create("acme", {**SPEC, "seed": 1}, "key")
        assert caught.value.param == "Idempotency-Key"
        assert len((await registry.listed("acme")).data) == 1

    with_registry(test)


def test_tenants_do_not_share_keys() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        ours = await registry.create("acme", SPEC, "key")
        theirs = await registry.create("rival", {**SPEC, "seed": 1}, "key")
        assert ours.id != theirs.id

    with_registry(test)


def test_many_at_once_with_one_key_make_one_job() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        made = await asyncio.gather(*(registry.create("acme", SPEC, "key") for _ in range(10)))
        assert len({job.id for job in made}) == 1
        assert await registry.open_jobs() == [made[0]]

    with_registry(test)


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_an_idempotency_key_has_a_length(key: str) -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        with pytest.raises(UserError, match="1 to 255"):
            await registry.create("acme", SPEC, key)

    with_registry(test)


def test_a_stale_replica_moves_nothing() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        job = await registry.create("acme", SPEC)
        await redis.set(fence_key(job.id), str(Fence(2, "b")))
        with pytest.raises(LostLeaseError):
            await registry.move("acme", job.id, "running", fence=Fence(1, "a"))
        assert (await registry.get("acme", job.id)).state == "queued"
        await registry.move("acme", job.id, "running", fence=Fence(2, "b"))
        # Its owner needs no lease.
        assert (await registry.move("acme", job.id, "cancelled")).state == "cancelled"

    with_registry(test)


def test_nothing_of_a_drivers_comes_after_the_end() -> None:
    """A driver learns of a cancellation a moment later."""

    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        job = (await registry.create("acme", SPEC)).id
        lease = await Leases(redis, "replica").acquire(job)
        assert lease is not None
        said = JobEvent(type="notice", message="well under way")
        step = StepRecord(step=0, version=1, metrics={}, position={})
        store = JobStore(redis, job, lease.fence, lambda _: said)
        await Events(redis).append(job, said, fence=lease.fence)
        await registry.move("acme", job, "cancelled")
        with pytest.raises(JobEndedError):
            await Events(redis).append(job, said, fence=lease.fence)
        with pytest.raises(JobEndedError):
            await store.commit(step, b"")
        await store.note(usage={})  # what was used until then is booked all the same
        assert await store.committed() == 0
        assert [e.message for e in (await Events(redis).read(job)).data] == [
            "queued",
            "well under way",
            "cancelled",
        ]

    with_registry(test)


def test_a_pause_outlives_the_replica_that_was_to_make_it() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        job = await registry.create("acme", SPEC)
        first, second = Fence(1, "a"), Fence(2, "b")
        await redis.set(fence_key(job.id), str(first))
        assert (await registry.take_up("acme", job.id, first)).state == "running"
        assert (await registry.pause("acme", job.id, "by its owner")).state == "pausing"
        await redis.set(fence_key(job.id), str(second))
        taken = await registry.take_up("acme", job.id, second)
        assert (taken.state, taken.reason) == ("pausing", "by its owner")
        with pytest.raises(LostLeaseError):
            await registry.take_up("acme", job.id, first)
        await registry.move("acme", job.id, "cancelled")
        with pytest.raises(ConflictError):
            await registry.take_up("acme", job.id, second)

    with_registry(test)


def test_after_a_setback_a_job_waits_unless_it_was_to_pause() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        job = await registry.create("acme", SPEC)
        fence, setback = Fence(1, "a"), Setback(99.0, 2, "no instance")
        await redis.set(fence_key(job.id), str(fence))
        await registry.take_up("acme", job.id, fence)
        back = await registry.put_back("acme", job.id, setback, fence=fence)
        assert (back.state, back.setback) == ("queued", setback)
        assert back.reason == "tried again after a setback: no instance"
        assert (await registry.take_up("acme", job.id, fence)).setback is None
        await registry.pause("acme", job.id, "by its owner")
        paused = await registry.put_back("acme", job.id, setback, fence=fence)
        assert (paused.state, paused.setback) == ("paused", None)
        assert paused.reason == "by its owner; the open step is to be repeated: no instance"
        assert (await registry.resume("acme", job.id, lambda spec: spec)).state == "queued"

    with_registry(test)


def test_a_tenant_has_so_many_open_jobs_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.service.registry.MAX_OPEN", 2)

    async def test(registry: Registry, _: fakeredis.FakeAsyncRedis) -> None:
        first = await registry.create("acme", SPEC, "key")
        await registry.create("acme", SPEC)
        with pytest.raises(ConflictError, match="2 jobs of your tenant have not ended"):
            await registry.create("acme", SPEC)
        assert await registry.create("acme", SPEC, "key") == first
        await registry.create("other", SPEC)
        await registry.move("acme", first.id, "cancelled")
        await registry.create("acme", SPEC)

    with_registry(test)


def test_a_tenants_name_cannot_reach_into_another_key() -> None:
    async def test(registry: Registry, redis: fakeredis.FakeAsyncRedis) -> None:
        with pytest.raises(UserError):
            await registry.create("acme:jobs", SPEC)
        assert await redis.keys("*") == []

    with_registry(test)
