"""Who cannot look at each snapshot sees the newest, and the last in any case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from controller.platforms.newest import newest
from simulator.clock import run


class Source:
    """Snapshots 0 .. ``count`` - 1, ``every_s``; then an end, an error, or nothing for ever."""

    def __init__(self, count: int, every_s: float, end: str = "end") -> None:
        self.count, self.every_s, self.end = count, every_s, end
        self.closed = False

    async def snapshots(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self.count):
                yield number
                await asyncio.sleep(self.every_s)
            if self.end == "error":
                raise ValueError("the source broke")
            if self.end == "never":
                await asyncio.sleep(1e6)
        finally:
            self.closed = True


async def seen(source: Source, pause_s: float, most: int = 100) -> list[tuple[float, int]]:
    found: list[tuple[float, int]] = []
    async with aclosing(newest(source.snapshots(), lambda _: pause_s)) as snapshots:
        async for snapshot in snapshots:
            found.append((asyncio.get_running_loop().time(), snapshot))
            if len(found) == most:
                break
    return found


def test_each_is_seen_by_who_is_fast_enough() -> None:
    async def main() -> None:
        source = Source(4, 1.0)
        assert await seen(source, 0.5) == [(0.0, 0), (1.0, 1), (2.0, 2), (3.0, 3)]
        assert source.closed

    run(main())


def test_the_slow_see_the_newest_and_the_last() -> None:
    async def main() -> None:
        source = Source(100, 0.1)
        found = await seen(source, 2.07)
        assert [number for _, number in found] == [0, 20, 41, 62, 82, 99]
        assert found[-1][0] == pytest.approx(10.35)

    run(main())


def test_what_is_new_after_a_long_silence_is_seen_at_once() -> None:
    async def main() -> None:
        assert await seen(Source(3, 50.0), 1.0) == [(0.0, 0), (50.0, 1), (100.0, 2)]

    run(main())


@pytest.mark.parametrize("pause_s", [0.0, 5.0])
def test_an_error_comes_after_the_last(pause_s: float) -> None:
    async def main() -> None:
        source = Source(3, 1.0, "error")
        found: list[int] = []
        with pytest.raises(ValueError, match="broke"):
            async for number in newest(source.snapshots(), lambda _: pause_s):
                found.append(number)  # noqa: PERF401
        assert found[-1] == 2
        assert source.closed

    run(main())


def test_closing_closes_the_source() -> None:
    async def main() -> None:
        source = Source(3, 1.0, "never")
        assert len(await seen(source, 0.0, most=2)) == 2
        assert source.closed

    run(main())
