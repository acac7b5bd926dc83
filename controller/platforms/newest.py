"""The newest of many snapshots, for whom it would take too long to look at each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

T = TypeVar("T")


async def newest(
    snapshots: AsyncGenerator[T, None], pause_s: Callable[[T], float]
) -> AsyncGenerator[T, None]:
    """Each time the newest of ``snapshots`` that was not seen, ``pause_s(it)`` after the last one
    at the earliest; the last is never left out. Ends and raises as ``snapshots`` does, and closes
    it."""
    found: list[T] = []
    news = asyncio.Event()

    async def read() -> None:
        try:
            async for snapshot in snapshots:
                found[:] = [snapshot]
                news.set()
        finally:
            news.set()
            await snapshots.aclose()

    reading = asyncio.create_task(read(), name="newest")
    try:
        while True:
            await news.wait()
            news.clear()
            if not found:
                break
            snapshot = found.pop()
            yield snapshot
            await asyncio.sleep(pause_s(snapshot))
            if reading.done():
                news.set()
        await reading
    finally:
        reading.cancel()
        await asyncio.wait({reading})
