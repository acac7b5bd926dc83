"""What a job uses, booked for its tenant while it runs and when all of it is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from controller.books import SAVE_EVERY_S, Books
from controller.fencing import Fence, LostLeaseError
from controller.job import Job
from controller.journal import Journal
from controller.service.registry import JobRecord
from controller.service.service import Service
from rlhfless.errors import CapacityError, TransientError

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
        """Books often while the body runs, and at its end what closing has taken."""

        async def book_often() -> None:
            while True:
                await asyncio.sleep(SAVE_EVERY_S)
                await self._book()

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
