"""A job's own books and what its tenant is charged agree in the end, whoever dies between them."""

from __future__ import annotations

import msgspec

from controller.job_store import JobStore
from controller.ledger import Usage
from controller.service.accounting import Accounting, Settling
from controller.service.lease import Lease, Leases
from controller.service.records import JobRecord
from tests.support.service_api import SPEC, Api, with_api


class World:
    """A job that a replica drove, whose last books it could not charge its tenant with."""

    def __init__(self, api: Api) -> None:
        self.service = api.service
        self.leases = Leases(api.redis, "replica")
        self.settling = Settling(api.service, self.leases)

    async def driven(self, seconds: float) -> tuple[JobRecord, Lease]:
        service = self.service
        record = await service.registry.create("acme", SPEC)
        lease = await self.leases.acquire(record.id)
        assert lease is not None
        journal = JobStore(service.redis, record.id, lease.fence)
        async with Accounting(service, record, journal, lease.fence).running():
            await journal.note(usage={"rollout": msgspec.to_builtins(Usage(busy_s=seconds))})
        return record, lease

    async def charged(self) -> float:
        return (await self.service.tenants.usage("acme")).function_seconds


def test_what_was_not_charged_is_when_the_job_has_ended() -> None:
    async def test(api: Api) -> None:
        world = World(api)
        record, lease = await world.driven(12.5)
        await world.service.registry.move("acme", record.id, "cancelled")
        await world.settling.settle()
        assert await world.charged() == 0.0  # its driver may still do it
        await world.leases.release(lease)
        for _ in range(2):
            await world.settling.settle()
            assert await world.charged() == 12.5
        assert not await api.redis.exists("rlhfless:unsettled")

    with_api(test)


def test_what_a_waiting_job_has_used_is_charged_once() -> None:
    async def test(api: Api) -> None:
        world = World(api)
        record, lease = await world.driven(3.0)
        await world.leases.release(lease)
        for seconds in (3.0, 3.0, 5.0):
            books = {"rollout": msgspec.to_builtins(Usage(busy_s=seconds))}
            await JobStore(api.redis, record.id).note(usage=books)
            await world.settling.settle()
            assert await world.charged() == seconds

    with_api(test)
