"""Many small writes made few: what comes while a write is under way, or right after one, goes with
the next.

The actors of a step finish samples a few at a time, thousands of times a step at a thousand
actors, and a write to the job store costs the same whether it brings two samples or two hundred.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Batch(Generic[T]):
    items: list[T] = field(default_factory=list)
    written: bool = False


class Gathered(Generic[T]):
    """``add`` returns when what it was given is written, and raises what ``write`` does.

    There is one write at a time, each in the order of the adds, and one begins no sooner than
    ``every_s`` after the last. Each add is written at least once: ``write`` must bear repetition.
    """

    def __init__(
        self, write: Callable[[Sequence[T]], Awaitable[None]], *, every_s: float = 0.0
    ) -> None:
        self._write = write
        self._every_s = every_s
        self._batch: _Batch[T] = _Batch()
        self._lock = asyncio.Lock()
        self._next_s = 0.0

    async def add(self, items: Sequence[T]) -> None:
        batch = self._batch
        batch.items += items
        async with self._lock:
            if batch.written:  # by one who was first to have the lock
                return
            loop = asyncio.get_running_loop()
            if (early_s := self._next_s - loop.time()) > 0:
                await asyncio.sleep(early_s)
            if self._batch is batch:  # from here on others gather anew
                self._batch = _Batch()
            self._next_s = loop.time() + self._every_s
            await self._write(batch.items)
            batch.written = True
