"""Scoring in the shadow of the rollout: work is taken up as it comes, in batches.

Samples finish one by one. Scoring each alone would pay a call for each; waiting for the last would
leave the functions idle. A ``Shadow`` gathers what has finished and, whenever one of its workers is
free and enough has come together (or nothing more will come), scores it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

SHARED = 4
"""When nothing more will come and everybody waits, a call is worth making for a quarter as much."""


class Shadow:
    """Feeds ``score`` with batches of sample ids.

    ``min_batch``: samples worth a call while more are to come. ``workers``: calls at once. With
    ``early`` False nothing is scored before ``close``. ``run`` returns when ``close`` has been
    called and everything added is scored; an error of ``score`` leaves ``run`` at once.
    """

    def __init__(
        self,
        score: Callable[[Sequence[str]], Awaitable[None]],
        *,
        min_batch: int,
        workers: int,
        early: bool = True,
    ) -> None:
        self._score = score
        self._min_batch = min_batch
        self._workers = workers
        self._early = early
        self._pending: list[str] = []
        self._closed = False
        self._share = min_batch
        self._changed = asyncio.Condition()

    async def add(self, sample_ids: Sequence[str]) -> None:
        async with self._changed:
            self._pending += sample_ids
            if self._closed:
                self._changed.notify_all()
            elif self._worth_a_call():
                self._changed.notify()

    async def close(self) -> None:
        """Nothing more will be added."""
        async with self._changed:
            self._closed = True
            equal = -(-len(self._pending) // self._workers)
            self._share = max(self._min_batch // SHARED, equal, 1)
            self._changed.notify_all()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for index in range(self._workers):
                group.create_task(self._work(), name=f"shadow-{index}")

    async def _work(self) -> None:
        while batch := await self._take():
            await self._score(batch)

    async def _take(self) -> list[str]:
        """The next batch; empty when all is done. At the end workers share what is left."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or self._worth_a_call())
            size = len(self._pending)
            if self._closed and self._workers > 1:
                size = self._share
            batch, self._pending = self._pending[:size], self._pending[size:]
            return batch

    def _worth_a_call(self) -> bool:
        """While more are to come."""
        return self._early and len(self._pending) >= self._min_batch
