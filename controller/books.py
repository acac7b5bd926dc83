"""What a job has spent over all its runs: the ledger knows this one, the journal those before."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from controller.journal import Journal
from controller.ledger import Ledger, Usage
from rlhfless.errors import RlhflessError, TransientError
from rlhfless.messages import FunctionName

SAVE_EVERY_S = 2.0
"""What a killed controller may leave unbooked, beside the commit of a step, which books all."""


_log = logging.getLogger(__name__)


class Books:
    """``notes`` are the journal's, as the run found them; ``start_s`` (loop seconds) its start."""

    def __init__(self, ledger: Ledger, notes: Mapping[str, Any], start_s: float) -> None:
        self._ledger = ledger
        self._start_s = start_s
        self._earlier = msgspec.convert(notes.get("usage", {}), dict[FunctionName, Usage])
        self._earlier_wall_s = msgspec.convert(notes.get("wall_s", 0.0), float)

    def usage(self, now_s: float) -> dict[FunctionName, Usage]:
        """By function, running instances included."""
        now = self._ledger.usage(now_s)
        functions = now.keys() | self._earlier.keys()
        return {f: now.get(f, Usage()) + self._earlier.get(f, Usage()) for f in sorted(functions)}

    def wall_s(self, now_s: float) -> float:
        return self._earlier_wall_s + now_s - self._start_s

    def notes(self, now_s: float) -> dict[str, Any]:
        """To be kept with the job, so that the next run goes on from them."""
        return {"usage": msgspec.to_builtins(self.usage(now_s)), "wall_s": self.wall_s(now_s)}


@asynccontextmanager
async def keeping(books: Books, journal: Journal) -> AsyncGenerator[None]:
    """Saves the books to the journal every now and then, and at the end, however it comes."""
    loop = asyncio.get_running_loop()

    async def save() -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            try:
                await journal.note(**books.notes(loop.time()))
            except TransientError as error:
                _log.warning("the books wait for the next time: %s", error.detail)

    async with asyncio.TaskGroup() as group:
        saving = group.create_task(save(), name="save-books")
        try:
            yield
        except BaseException:
            saving.cancel()
            with contextlib.suppress(RlhflessError):  # what went wrong before matters more
                await journal.note(**books.notes(loop.time()))
            raise
        saving.cancel()
        await journal.note(**books.notes(loop.time()))
