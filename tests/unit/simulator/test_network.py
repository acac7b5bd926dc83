"""Bandwidth is shared max-min fair, and what leaves gives its share back."""

from __future__ import annotations

import asyncio

import pytest

from simulator import clock
from simulator.platform.network import Network
from simulator.platform.pulls import NodeCache


def times(*transfers: tuple[float, float, float], total: float = 10.0) -> list[float]:
    """When each of (start, bytes, bound) is through."""

    async def main() -> list[float]:
        network = Network(total, 0.0)
        loop = asyncio.get_running_loop()

        async def one(start_s: float, num_bytes: float, bound: float) -> float:
            await asyncio.sleep(start_s)
            await network.transfer(num_bytes, bound)
            return loop.time()

        return list(await asyncio.gather(*(one(*each) for each in transfers)))

    return clock.run(main())


def test_a_transfer_alone_is_bound_by_its_own_way() -> None:
    assert times((0, 1000, 4.0)) == [pytest.approx(250)]
    assert times((0, 1000, 40.0)) == [pytest.approx(100)]


def test_two_share_equally() -> None:
    assert times((0, 1000, 40), (0, 1000, 40)) == [pytest.approx(200, rel=1e-3)] * 2


def test_who_cannot_use_its_share_leaves_it_to_the_others() -> None:
    slow, fast, other = times((0, 1000, 1), (0, 900, 8), (0, 900, 8))
    assert slow == pytest.approx(1000, rel=1e-3)
    assert fast == other == pytest.approx(200, rel=1e-3)


def test_a_late_comer_takes_its_share_from_then_on() -> None:
    first, second = times((0, 1000, 40), (50, 250, 40))
    assert second == pytest.approx(100, rel=1e-2)  # 5 a second from 50 on
    assert first == pytest.approx(125, rel=1e-2)


def test_cancelling_gives_the_share_back() -> None:
    async def main() -> float:
        network = Network(10.0, 0.0)
        loop = asyncio.get_running_loop()
        gone = asyncio.create_task(network.transfer(1000, 40))
        kept = asyncio.create_task(network.transfer(1000, 40))
        await asyncio.sleep(100)
        gone.cancel()
        await kept
        return loop.time()

    assert clock.run(main()) == pytest.approx(150, rel=1e-3)


def test_instances_of_a_node_share_what_one_has_read() -> None:
    async def main(shared: bool) -> float:
        network, cache = Network(10.0, 0.0), NodeCache(shared=shared)
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(cache.fetch(network, "node", 1, 1000, 40) for _ in range(4)))
        return loop.time()

    assert clock.run(main(True)) == pytest.approx(100, rel=1e-3)
    assert clock.run(main(False)) == pytest.approx(400, rel=1e-3)


def test_whoever_began_to_read_may_go_away() -> None:
    async def main() -> float:
        network, cache = Network(10.0, 0.0), NodeCache(shared=True)
        loop = asyncio.get_running_loop()
        first = asyncio.create_task(cache.fetch(network, "node", 1, 1000, 40))
        await asyncio.sleep(10)
        second = asyncio.create_task(cache.fetch(network, "node", 1, 1000, 40))
        await asyncio.sleep(10)
        first.cancel()
        await second
        return loop.time()

    assert clock.run(main()) == pytest.approx(100, rel=1e-3)
