"""Weights on their way from the object store to nodes."""

from __future__ import annotations

import asyncio

from simulator.platform.network import Network


class NodeCache:
    """``shared``: instances of a node share what one of them has read (a page cache, a host's
    memory); otherwise each reads for itself."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._read: dict[tuple[str, int], asyncio.Task[float]] = {}

    async def fetch(
        self, network: Network, node: str, version: int, num_bytes: float, bandwidth: float
    ) -> None:
        """Return when the version's bytes are on the node."""
        if not self._shared or not node:
            await network.transfer(num_bytes, bandwidth)
            return
        for key in [each for each in self._read if each[1] < version - 1]:
            del self._read[key]
        reading = self._read.get((node, version))
        if reading is None or reading.cancelled():
            reading = asyncio.create_task(
                network.transfer(num_bytes, bandwidth), name=f"pull-{node}-v{version}"
            )
            self._read[node, version] = reading
        # Whoever began it may go away: others wait for the same bytes.
        await asyncio.shield(reading)
