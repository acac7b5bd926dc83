"""Jobs that are removed: what of them goes, what stays, and who cannot be removed."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from controller.ledger import Usage
from controller.service.accounting import UNSETTLED
from controller.service.events import JobEvent
from controller.service.lease import Leases
from controller.service.records import WEBHOOK_JOBS
from controller.service.removal import DAY_S, LET_GO_S, clear_away, remove, remove_old
from controller.service.service import Service
from controller.service.settings import Settings
from rlhfless.errors import ConflictError, NotFoundError
from tests.support.service_api import SPEC, Api, refused, with_api

KINDS = ("weights", "batches", "results", "kv", "checkpoints", "samples", "trackers")


class World:
    """``keep_days`` is what its service keeps jobs for."""

    def __init__(self, folder: Path, keep_days: float | None = None) -> None:
        self.redis = fakeredis.FakeAsyncRedis()
        self.settings = Settings(
            folder=str(folder), store=str(folder / "store"), keep_days=keep_days
        )
        self.service = Service(self.redis, self.settings)

    async def job(self, spec: dict[str, Any] | None = None, tenant: str = "acme") -> str:
        """A job that has written all there is."""
        made = await self.service.registry.create(tenant, spec or {"name": "one"}, None, {"a": "b"})
        job = made.id
        for kind in KINDS:
            self.service.objects.put(f"{kind}/{job}/000001/part", b"data")
        for name in ("steps", "step:3:samples", "spans", "logs", "logs:at", "job"):
            await self.redis.hset(f"rlhfless:{{{job}}}:{name}", "field", "value")
        await self.service.events.append(job, JobEvent(type="step", message="1"), once="step-1")
        return job

    async def ended(self, spec: dict[str, Any] | None = None) -> str:
        job = await self.job(spec)
        await self.service.registry.move("acme", job, "cancelled")
        return job

    async def left(self, job: str) -> list[str]:
        """Keys and objects of a job."""
        found = [key.decode() for key in await self.redis.keys() if job.encode() in key]
        return found + [
            name for kind in KINDS for name in self.service.objects.list(kind + f"/{job}")
        ]

    async def there(self, job: str) -> bool:
        try:
            await self.service.registry.get("acme", job)
        except NotFoundError:
            return False
        return True


def in_world(
    folder: Path, test: Callable[[World], Awaitable[None]], keep_days: float | None = None
) -> None:
    async def main() -> None:
        world = World(folder, keep_days)
        await test(world)
        await world.redis.aclose()

    asyncio.run(main())


def later(seconds: float = LET_GO_S) -> Callable[[], float]:
    return lambda: time.time() + seconds


def test_a_removed_job_leaves_nothing(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        service = world.service
        job, other = await world.ended(), await world.job()
        others = await world.left(other)
        trackers = tmp_path / "trackers" / job
        trackers.mkdir(parents=True)
        usage = {"rollout": Usage(busy_s=10.0, usd=1.0)}
        await service.tenants.book("acme", job, usage)
        await remove(world.redis, "acme", job)
        assert not await world.there(job)
        listed = await service.registry.listed("acme")
        assert [record.id for record in listed.data] == [other]
        with pytest.raises(NotFoundError):
            await remove(world.redis, "acme", job)
        assert await clear_away(service) == 0  # its driver may not have let go of it
        assert await clear_away(service, later()) == 1
        assert await world.left(job) == []
        assert not trackers.exists()
        members = [await world.redis.smembers(key) for key in _sets(await world.redis.keys())]
        assert job.encode() not in b" ".join(b" ".join(one) for one in members)
        assert await world.left(other) == others
        assert (await service.tenants.usage("acme")).function_seconds == 10.0
        assert await clear_away(service, later()) == 0

    in_world(tmp_path, test)


def _sets(keys: list[bytes]) -> list[bytes]:
    return [key for key in keys if key.startswith(b"rlhfless:jobs:")]


def test_what_somebody_still_writes_to_goes_later(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        service, redis = world.service, world.redis
        job = await world.job({"name": "one", "webhooks": [{"url": "http://hook"}]})
        lease = await Leases(redis, "one").acquire(job)
        assert lease is not None
        await redis.sadd(UNSETTLED, job)
        await service.registry.move("acme", job, "cancelled")
        await remove(redis, "acme", job)
        with pytest.raises(NotFoundError):
            await service.registry.move("acme", job, "succeeded", fence=lease.fence)
        assert await clear_away(service, later()) == 0
        await Leases(redis, "one").release(lease)
        assert await clear_away(service, later()) == 0
        await redis.srem(UNSETTLED, job)
        assert await clear_away(service, later()) == 0
        await redis.srem(WEBHOOK_JOBS, f"acme {job}")
        assert await clear_away(service, later()) == 1
        assert await world.left(job) == []

    in_world(tmp_path, test)


def test_only_ended_jobs_of_ones_own_can_be_removed(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        job = await world.job()
        with pytest.raises(ConflictError) as told:
            await remove(world.redis, "acme", job)
        assert told.value.hint == "cancel it first"
        await world.service.registry.move("acme", job, "cancelled")
        with pytest.raises(NotFoundError):
            await remove(world.redis, "rival", job)
        with pytest.raises(NotFoundError):
            await remove(world.redis, "acme", "job-*")
        assert await world.there(job)

    in_world(tmp_path, test)


def test_a_job_stays_while_an_open_one_begins_with_its_checkpoint(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        service, base = world.service, await world.ended()
        named = {"model": {"path": f"checkpoint:{base}/1"}}
        first, second = await world.job(named), await world.job(named)
        for user in (first, second):
            with pytest.raises(ConflictError, match="has not ended"):
                await remove(world.redis, "acme", base)
            await remove_old(service, later(2 * DAY_S))
            assert await world.there(base)
            await service.registry.move("acme", user, "cancelled")
        assert await remove_old(service, later(2 * DAY_S)) == 2
        assert not await world.there(base)
        with pytest.raises(NotFoundError) as told:
            await service.registry.create("acme", named)
        assert told.value.param == "model.path"

    in_world(tmp_path, test, keep_days=1.0)


def test_a_job_is_never_removed_under_one_that_is_submitted_meanwhile(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        for _ in range(20):
            base = await world.ended()
            spec = {"model": {"path": f"checkpoint:{base}/1"}}
            made, gone = await asyncio.gather(
                world.service.registry.create("acme", spec),
                remove(world.redis, "acme", base),
                return_exceptions=True,
            )
            assert isinstance(made, NotFoundError) != isinstance(gone, ConflictError)
            assert await world.there(base) == isinstance(gone, ConflictError)

    in_world(tmp_path, test)


def test_jobs_are_removed_when_they_ended_long_enough_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.service.removal.PORTION", 2)

    async def test(world: World) -> None:
        service = world.service
        jobs = [await world.ended() for _ in range(5)]
        open_ = await world.job()
        assert await remove_old(service, later(0.9 * DAY_S)) == 0
        replica = Service(world.redis, world.settings)  # another, at the same moment
        await asyncio.gather(
            remove_old(service, later(1.1 * DAY_S)), remove_old(replica, later(1.1 * DAY_S))
        )
        assert not any([await world.there(job) for job in jobs])
        while sum(await asyncio.gather(*(clear_away(s, later()) for s in (service, replica)))):
            pass
        assert [await world.left(job) for job in jobs] == [[]] * len(jobs)
        assert await world.there(open_)

    in_world(tmp_path, test, keep_days=1.0)


def test_without_a_limit_jobs_stay(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        job = await world.ended()
        assert await remove_old(world.service, later(10_000 * DAY_S)) == 0
        assert await world.there(job)

    in_world(tmp_path, test)


def test_whoever_dies_over_it_is_gone_on_for(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        job = await world.ended()
        await remove(world.redis, "acme", job)
        await world.redis.delete(f"rlhfless:{{{job}}}:record")  # so far it came
        assert await clear_away(world.service, later()) == 1
        assert await world.left(job) == []

    in_world(tmp_path, test)


def test_an_idempotency_key_of_a_deleted_job_makes_no_other(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        registry = world.service.registry
        job = (await registry.create("acme", {"name": "one"}, "key")).id
        await registry.move("acme", job, "cancelled")
        await remove(world.redis, "acme", job)
        for _ in range(2):
            with pytest.raises(ConflictError, match="which was deleted"):
                await registry.create("acme", {"name": "one"}, "key")
            await clear_away(world.service, later())

    in_world(tmp_path, test)


def test_over_rest(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        user, reader = await api.user("acme", "submit"), await api.user("acme", "read")
        path = f"/v1/jobs/{(await user.post('/v1/jobs', json=SPEC)).json()['id']}"
        assert refused(await user.delete(path), 409)["hint"] == "cancel it first"
        await user.post(f"{path}/cancel")
        refused(await reader.delete(path), 403)
        gone = await user.delete(path)
        assert (gone.status_code, gone.json()["state"]) == (200, "cancelled")
        for what in ("", "/events", "/metrics", "/checkpoints", "/logs"):
            refused(await user.get(path + what), 404)
        refused(await user.delete(path), 404)
        assert (await user.get("/v1/jobs")).json()["data"] == []
        entries = (await api.service.audit.read("acme", None, 100)).data
        told = [(e.action, e.target, e.status) for e in entries if e.action.startswith("DELETE")]
        assert sorted(told, key=lambda entry: entry[2]) == [
            ("DELETE /v1/jobs/{job}", path, status) for status in (200, 403, 404, 409)
        ]

    with_api(test, tmp_path)
