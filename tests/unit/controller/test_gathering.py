"""Writes that are gathered: none is lost, none is told of too early, and they are few."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from controller.gathering import Gathered
from rlhfless.errors import CapacityError
from simulator.clock import run


class Store:
    """A write takes a second. ``failing``: so many fail at its end."""

    def __init__(self, failing: int = 0) -> None:
        self.writes: list[tuple[float, list[int]]] = []
        self.under_way = 0
        self.failing = failing

    async def write(self, items: Sequence[int]) -> None:
        assert not self.under_way, "two at once"
        self.under_way += 1
        self.writes.append((asyncio.get_running_loop().time(), list(items)))
        try:
            await asyncio.sleep(1.0)
            if self.failing:
                self.failing -= 1
                raise CapacityError("the disk is full")
        finally:
            self.under_way -= 1

    @property
    def kept(self) -> list[int]:
        return [item for _, items in self.writes for item in items]


def test_what_comes_during_a_write_goes_with_the_next() -> None:
    async def main() -> None:
        store = Store()
        gathered = Gathered(store.write)
        first = asyncio.create_task(gathered.add([1]))
        await asyncio.sleep(0.1)
        others = [asyncio.create_task(gathered.add([n])) for n in (2, 3, 4)]
        await first
        assert asyncio.get_running_loop().time() == 1.0
        assert not any(other.done() for other in others)  # theirs is not written
        await asyncio.gather(*others)
        assert store.writes == [(0.0, [1]), (1.0, [2, 3, 4])]

    run(main())


def test_writes_begin_so_far_apart() -> None:
    async def main() -> None:
        store = Store()
        gathered = Gathered(store.write, every_s=5.0)
        await gathered.add([1])  # at once: none was before
        await asyncio.sleep(1.0)
        await asyncio.gather(*(gathered.add([n]) for n in (2, 3)))
        await asyncio.sleep(9.0)
        await gathered.add([4])  # at once, again
        assert store.writes == [(0.0, [1]), (5.0, [2, 3]), (15.0, [4])]

    run(main())


def test_a_write_that_fails_fails_those_who_were_in_it_and_no_others() -> None:
    async def main() -> None:
        store = Store(failing=1)
        gathered = Gathered(store.write)
        first = asyncio.create_task(gathered.add([1]))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(gathered.add([2]))
        with pytest.raises(CapacityError):
            await first
        await second
        assert store.kept == [1, 2]

    run(main())


def test_who_shares_a_batch_with_one_that_gives_up_writes_it() -> None:
    async def main() -> None:
        for moment_s in (0.5, 1.5):  # before its write has begun, and in the middle of it
            store = Store()
            gathered = Gathered(store.write)
            busy = asyncio.create_task(gathered.add([0]))
            await asyncio.sleep(0.1)
            gone = asyncio.create_task(gathered.add([1]))
            stays = asyncio.create_task(gathered.add([2]))
            await asyncio.sleep(moment_s)
            gone.cancel()
            await asyncio.gather(busy, stays)
            assert gone.cancelled()
            assert set(store.kept) == {0, 1, 2}

    run(main())
