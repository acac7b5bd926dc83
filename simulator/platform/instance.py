"""A simulated function instance: what it holds, and how work on it is cut short."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Literal

from controller.platforms.base import InstanceState
from rlhfless.errors import TransientError
from rlhfless.messages import FunctionName
from simulator.cluster import Pool
from simulator.platform.capacity import Grant
from simulator.platform.costs import Costs
from simulator.platform.network import Network
from simulator.platform.pulls import NodeCache

Life = Literal["starting", "ready", "asleep", "gone"]


@dataclass(eq=False)
class SimulatedInstance:
    """``pool`` None: on a host's CPUs. ``slow``: factor on its times. ``version``: of the weights
    it has; ``bandwidth``: bytes/s between it and the object store."""

    id: str
    function: FunctionName
    costs: Costs
    network: Network
    cache: NodeCache
    slow: float = 1.0
    pool: Pool | None = None
    accelerators: int = 0
    bandwidth: float = math.inf
    life: Life = "starting"
    grant: Grant | None = None
    calls: int = 0
    draining: bool = False
    retiring: bool = False
    falling_asleep: asyncio.Task[None] | None = None
    used_s: float = 0.0
    """When it last had something to do, loop seconds."""
    version: int = 0
    prefixes: set[tuple[int, int]] = field(default_factory=set)
    begun: tuple[int, dict[int, int]] = (0, {})
    """Of the update to a version: tokens of the samples begun ahead, by their places."""
    _loaded: bool = False
    _wakers: dict[asyncio.Future[None], None] = field(default_factory=dict)
    """Of the calls that sleep, in order."""

    @property
    def state(self) -> InstanceState:
        if self.life == "ready":
            return "busy" if self.calls else "idle"
        return "stopping" if self.life == "gone" else "cold"

    @property
    def node(self) -> str:
        return "" if self.grant is None else self.grant.node

    # --- time on it -------------------------------------------------------------------------------

    async def sleep_until(self, time_s: float) -> None:
        """Until the loop's clock says so, ``wake`` is called or the instance drains. Raises
        ``TransientError`` if it goes away meanwhile."""
        self._check()
        loop = asyncio.get_running_loop()
        if time_s <= loop.time():
            return
        waker = loop.create_future()
        handle = loop.call_at(time_s, _wake, waker)
        self._wakers[waker] = None
        try:
            await waker
        finally:
            handle.cancel()
            del self._wakers[waker]
        self._check()

    def wake(self) -> None:
        """All calls on it."""
        for waker in self._wakers:
            _wake(waker)

    async def work(self, seconds: float) -> None:
        """Be busy. Raises ``TransientError`` if the instance goes away meanwhile."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self.slow * seconds
        while loop.time() < ends_s:
            await self.sleep_until(ends_s)  # woken early: it only drains, and unary calls end first
        self._check()

    def drain(self) -> None:
        """It gets notice: calls hand back what they have."""
        self.draining = True
        self.wake()

    def die(self) -> None:
        """It is gone, with all that runs on it."""
        self.life = "gone"
        self.wake()

    def _check(self) -> None:
        if self.life == "gone":
            raise TransientError(f"{self.id} went away")

    # --- what it holds ----------------------------------------------------------------------------

    async def load(self) -> float:
        """What the first call takes longer; seconds."""
        if self._loaded:
            return 0.0
        self._loaded = True
        seconds = self.costs.load_s(self.function)
        if seconds:
            await self.work(seconds)
        return seconds

    async def pull(self, version: int) -> tuple[float, float]:
        """Have a version's weights: bytes moved, and seconds."""
        if version == self.version:
            return 0.0, 0.0
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        num_bytes = self.costs.version_bytes
        measured = self.costs.pull_s()
        if measured is not None:
            await self.work(measured)
        else:
            assert self.pool is not None
            await self.cache.fetch(self.network, self.node, version, num_bytes, self.bandwidth)
            self._check()
            await self.work(num_bytes / self.accelerators / self.pool.host_bytes_per_s)
        self.version = version
        self.prefixes.clear()
        return num_bytes, loop.time() - began_s


def _wake(waker: asyncio.Future[None]) -> None:
    if not waker.done():
        waker.set_result(None)
