"""The object store's bandwidth, shared fairly among the transfers under way.

Every transfer has a bound of its own (its instance's network, its share of the store), and all
together have the store's. Bandwidth is dealt out max-min fair: whoever cannot use an equal share
leaves the rest to the others. Worked number: 10 GB/s among transfers bounded at 1, 8 and 8 GB/s
give 1, 4.5 and 4.5 GB/s.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

_ENOUGH = 1.0
"""Bytes that may be left when a transfer is called done: less than rounding makes of gigabytes."""


@dataclass(eq=False)
class _Transfer:
    left: float
    bound: float
    done: asyncio.Future[None]
    rate: float = 0.0


class Network:
    """``bytes_per_s`` of all transfers; ``latency_s`` before the first byte of each."""

    def __init__(self, bytes_per_s: float, latency_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._active: list[_Transfer] = []
        self._since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def transfer(self, num_bytes: float, bound: float) -> float:
        """Return when ``num_bytes`` have been moved at no more than ``bound`` bytes/s; seconds it
        took. Cancelling it frees its share."""
        if num_bytes <= 0:
            return 0.0
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.sleep(self._latency_s)
        transfer = _Transfer(num_bytes, bound, loop.create_future())
        self._advance()
        self._active.append(transfer)
        self._share()
        try:
            await transfer.done
        finally:
            if transfer in self._active:
                self._advance()
                self._active.remove(transfer)
                self._share()
        return loop.time() - began_s

    def _advance(self) -> None:
        """Book what was moved since the last change."""
        now_s = asyncio.get_running_loop().time()
        for transfer in self._active:
            transfer.left -= transfer.rate * (now_s - self._since_s)
        self._since_s = now_s

    def _share(self) -> None:
        """Deal out the bandwidth, and wake up when the first transfer is through."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._active:
            return
        left = self._bytes_per_s
        for rank, transfer in enumerate(sorted(self._active, key=lambda t: t.bound)):
            transfer.rate = min(transfer.bound, left / (len(self._active) - rank))
            left -= transfer.rate
        first_s = min(max(0.0, t.left) / t.rate for t in self._active)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(first_s, self._finish)

    def _finish(self) -> None:
        self._timer = None
        self._advance()
        for transfer in self._active:
            if transfer.left <= _ENOUGH and not transfer.done.done():
                transfer.done.set_result(None)
        self._active = [t for t in self._active if t.left > _ENOUGH]
        self._share()
