"""Stored keys and values of prompts: who has which, and what it takes to move them.

A segment is known by the model's version and by its tokens up to its end. Instances keep what they
computed or loaded of the newest version; the object store keeps what was published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.platform.costs import Costs
from simulator.platform.network import Network

if TYPE_CHECKING:
    from simulator.platform.instance import SimulatedInstance

Segment = tuple[int, int]
"""A version, and the hash of the tokens up to its end."""


@dataclass
class PrefixUsed:
    """What one call took from others, and gave them."""

    loaded_tokens: int = 0
    reused_tokens: int = 0
    loads: int = 0
    load_s: float = 0.0
    loaded_bytes: int = 0
    publish_s: float = 0.0
    published_bytes: int = 0


class PrefixStore:
    """What the object store has of keys and values."""

    def __init__(self, costs: Costs, network: Network) -> None:
        self._costs = costs
        self._network = network
        self._stored: dict[int, set[Segment]] = {}

    async def fetch(
        self,
        instance: SimulatedInstance,
        used: PrefixUsed,
        prompts: Sequence[Sequence[int]],
        cuts: Sequence[Sequence[int]],
        *,
        load: bool,
    ) -> list[int]:
        """Have what is stored of each prompt on the instance; its tokens that need not be computed.

        What an earlier prompt of the list has in common with a later one is there when its turn
        comes.
        """
        version = instance.version
        stored = self._stored.get(version, set()) if load else set()
        cached: list[int] = []
        tokens = loads = 0
        for prompt, ends in zip(prompts, cuts, strict=True):
            known = 0
            for end in ends:
                segment = _segment(version, prompt, end)
                if segment in instance.prefixes:
                    used.reused_tokens += end - known
                elif segment in stored:
                    tokens += end - known
                    loads += 1
                else:
                    break
                known = end
            cached.append(known)
            instance.prefixes.update(_segment(version, prompt, end) for end in ends)
        if loads:
            num_bytes = tokens * self._costs.kv_token_bytes
            used.load_s += await self._move(instance, loads, num_bytes, publish=False)
            used.loads += loads
            used.loaded_tokens += tokens
            used.loaded_bytes += num_bytes
        return cached

    async def publish(
        self,
        instance: SimulatedInstance,
        used: PrefixUsed,
        prompts: Sequence[Sequence[int]],
        cuts: Sequence[Sequence[int]],
    ) -> None:
        """Store what nobody has stored yet."""
        version = instance.version
        for old in [each for each in self._stored if each < version]:
            del self._stored[old]
        stored = self._stored.setdefault(version, set())
        tokens = 0
        new: list[Segment] = []
        for prompt, ends in zip(prompts, cuts, strict=True):
            begin = 0
            for end in ends:
                segment = _segment(version, prompt, end)
                if segment not in stored and segment not in new:
                    new.append(segment)
                    tokens += end - begin
                begin = end
        if new:
            num_bytes = tokens * self._costs.kv_token_bytes
            used.publish_s += await self._move(instance, 1, num_bytes, publish=True)
            used.published_bytes += num_bytes
            stored.update(new)

    async def _move(
        self, instance: SimulatedInstance, times: int, num_bytes: int, *, publish: bool
    ) -> float:
        measured = self._costs.kv_s(times, num_bytes, publish=publish)
        if measured is None:
            return await self._network.transfer(num_bytes, instance.bandwidth)
        await asyncio.sleep(measured)
        return measured


def _segment(version: int, tokens: Sequence[int], end: int) -> Segment:
    return version, hash(tuple(tokens[:end]))
