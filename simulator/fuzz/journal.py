"""The journal with a network before it: calls take time, and fail before or after their effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from controller.collector import FinishedSample
from controller.journal import Journal, Scores, StepJournal, StepRecord
from rlhfless.errors import CapacityError, TransientError
from simulator.fuzz.chance import Chance
from simulator.fuzz.life import Life
from simulator.fuzz.witness import Witness


class FuzzedJournal:
    """One controller's connection to ``inner``, which it shares with its successors."""

    def __init__(self, inner: Journal, life: Life, chance: Chance, witness: Witness) -> None:
        self._inner = inner
        self._witness = witness
        self._life = life
        self._chance = chance

    async def note(self, **values: Any) -> None:
        async with self._call("note", *values):
            await self._inner.note(**values)

    async def notes(self) -> dict[str, Any]:
        async with self._call("notes"):
            return await self._inner.notes()

    async def records(self) -> list[StepRecord]:
        async with self._call("records"):
            return await self._inner.records()

    async def step_journal(self, step: int) -> StepJournal:
        async with self._call("step_journal", step):
            kept = await self._inner.step_journal(step)
            self._witness.restored(kept)
            return kept

    async def add_samples(self, step: int, samples: Iterable[FinishedSample]) -> None:
        samples = list(samples)
        async with self._call("add_samples", step, *(sample.id for sample in samples)):
            await self._inner.add_samples(step, samples)

    async def add_scores(self, step: int, scores: Mapping[str, Scores]) -> None:
        async with self._call("add_scores", step, *scores):
            await self._inner.add_scores(step, scores)

    async def add_reference(self, step: int, logprobs: Mapping[str, bytes]) -> None:
        async with self._call("add_reference", step, *logprobs):
            await self._inner.add_reference(step, logprobs)

    async def commit(self, record: StepRecord, policy_state: bytes, **notes: Any) -> None:
        async with self._call("commit", record.step, record.version):
            await self._inner.commit(record, policy_state, **notes)

    async def policy_state(self) -> bytes | None:
        async with self._call("policy_state"):
            return await self._inner.policy_state()

    @asynccontextmanager
    async def _call(self, name: str, *details: object) -> AsyncGenerator[None]:
        self._life.cross(f"journal.{name}", *details)
        if self._chance.strikes("journal_slow", name):
            await asyncio.sleep(self._chance.seconds(0.2))
            self._life.cross(f"journal.{name} arrives")
        if self._chance.strikes("journal_lost", name):
            raise TransientError("the job store cannot be reached")
        if self._chance.strikes("journal_full", name):
            raise CapacityError("the job store cannot persist")
        yield
        if self._chance.strikes("journal_unheard", name):
            raise TransientError("the connection to the job store was lost")
        self._life.cross(f"journal.{name} done")
