"""What a job uses, booked for its tenant while it runs and when all of it is closed.

A job's own books and its tenant's are two, and a replica or its Redis may go between them. So each
job that was ever driven is on a list (``rlhfless:unsettled``) until it has ended, nobody drives it
any more, and what its books say has been charged to its tenant.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from controller.books import SAVE_EVERY_S, Books
from controller.fencing import Fence, LostLeaseError
from controller.job import Job
from controller.job_store import JobStore
from controller.journal import Journal
from controller.ledger import Usage
from controller.redis_calls import answer
from controller.service.lease import Leases
from controller.service.records import JobRecord
from controller.service.service import Service
from controller.service.states import FINAL
from rlhfless.errors import CapacityError, TransientError
from rlhfless.messages import FunctionName

SETTLE_EVERY_S = 5.0
UNSETTLED = "rlhfless:unsettled"
_log = logging.getLogger(__name__)


class Accounting:
    """Of one attempt. ``attach`` is entered around the job once it has books."""

    def __init__(self, service: Service, record: JobRecord, journal: Journal, fence: Fence) -> None:
        self._service = service
        self._record = record
        self._journal = journal
        self._fence = fence
        self._books: Books | None = None

    @asynccontextmanager
    async def attach(self, job: Job) -> AsyncGenerator[None]:
        self._books = job.books
        yield

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Books often while the body runs, and at its end what closing has taken. Raises as
        ``controller.redis_calls.answer`` does, before the body runs."""

        async def book_often() -> None:
            while True:
                await asyncio.sleep(SAVE_EVERY_S)
                await self._book()

        await answer(self._service.redis.sadd(UNSETTLED, self._record.id))
        async with asyncio.TaskGroup() as group:
            booking = group.create_task(book_often(), name="book-usage")
            try:
                yield
            finally:
                booking.cancel()
                await asyncio.wait({booking})
                await self._book()

    async def _book(self) -> None:
        if self._books is None:
            return
        now_s = asyncio.get_running_loop().time()
        usage, record = self._books.usage(now_s), self._record
        try:
            await self._journal.note(**self._books.notes(now_s))
            fresh = await self._service.tenants.book(record.tenant, record.id, usage, self._fence)
            self._service.metrics.booked(fresh)
        except LostLeaseError:
            return  # whoever keeps the lease ends the run
        except (TransientError, CapacityError) as error:
            _log.warning("the books of job %s wait: %s", record.id, error.detail)


class Settling:
    """Charges tenants with what the books of jobs say that nobody drives, where that was not done.
    Any replica does it for all."""

    def __init__(self, service: Service, leases: Leases) -> None:
        self._service = service
        self._leases = leases

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self.settle()
            except (TransientError, CapacityError) as error:
                _log.warning("the charges of jobs wait: %s", error.detail)
            await asyncio.sleep(SETTLE_EVERY_S)

    async def settle(self) -> None:
        """Raises as ``controller.redis_calls.answer`` does."""
        service = self._service
        members = await answer(service.redis.smembers(UNSETTLED))
        for record in await service.registry.records(sorted(job.decode() for job in members)):
            if await self._leases.holder(record.id) is not None:
                continue  # who drives it books, also when it has ended just now
            notes = await JobStore(service.redis, record.id).noted("usage")
            usage = msgspec.convert(notes.get("usage", {}), dict[FunctionName, Usage])
            fresh = await service.tenants.book(record.tenant, record.id, usage)
            service.metrics.booked(fresh)
            if record.state in FINAL:
                await answer(service.redis.srem(UNSETTLED, record.id))
