"""Preemptible nodes that are taken away and come back, by a trace or at random."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from simulator.platform.capacity import Node


class Preemption:
    """Works on the nodes of ``nodes`` that are spot. ``notice`` and ``take_away`` are told a node's
    name, ``came_back`` that some node is there again. ``count``: nodes taken away so far."""

    def __init__(
        self,
        nodes: Sequence[Node],
        rng: random.Random,
        notice: Callable[[str], None],
        take_away: Callable[[str], None],
        came_back: Callable[[], None],
    ) -> None:
        self.count = 0
        self._nodes = [node for node in nodes if node.spot]
        self._rng = rng
        self._notice = notice
        self._take_away = take_away
        self._came_back = came_back
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Start the clock; once."""
        if self._tasks or not self._nodes:
            return
        pools = {node.pool.name: node.pool for node in self._nodes}
        for name, pool in pools.items():
            nodes = [node for node in self._nodes if node.pool.name == name]
            assert pool.spot is not None
            if pool.availability:
                self._spawn(self._follow(nodes, pool.availability, pool.spot.notice_s), name)
            elif pool.spot.preemptions_per_hour > 0:
                for node in nodes:
                    rng = random.Random(self._rng.getrandbits(63))
                    self._spawn(self._suffer(node, rng), node.name)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _suffer(self, node: Node, rng: random.Random) -> None:
        """A node's life: so long there, so long away."""
        spot = node.pool.spot
        assert spot is not None
        while True:
            await asyncio.sleep(rng.expovariate(spot.preemptions_per_hour / 3600))
            await self._remove([node], spot.notice_s)
            await asyncio.sleep(rng.expovariate(1 / spot.return_s) if spot.return_s else 0.0)
            self._bring_back([node])

    async def _follow(
        self, nodes: Sequence[Node], trace: Sequence[tuple[float, int]], notice_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for at_s, count in trace:
            there = [node for node in nodes if node.present]
            if count < len(there):
                # Notice comes ahead of the moment the trace names.
                await asyncio.sleep(began_s + at_s - notice_s - loop.time())
                await self._remove(there[count:], began_s + at_s - loop.time())
            else:
                await asyncio.sleep(began_s + at_s - loop.time())
                away = [node for node in nodes if not node.present]
                self._bring_back(away[: count - len(there)])

    async def _remove(self, nodes: Sequence[Node], notice_s: float) -> None:
        for node in nodes:
            self._notice(node.name)
        await asyncio.sleep(notice_s)
        for node in nodes:
            node.present = False
            self._take_away(node.name)
        self.count += len(nodes)

    def _bring_back(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            node.present = True
        self._came_back()

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(coroutine, name=f"spot-{name}"))
