"""Which actor generates which sample.

The samples of one prompt stay together, so that the prompt is prefilled once; groups go to actors
largest first, each to the least loaded (LPT: at most 4/3 of the best makespan, Graham 1969). With
fewer groups than actors the largest groups are split in halves until every actor has work.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """A sample to place: its prompt's number and its predicted tokens."""

    id: str
    group: int
    tokens: float


def group_affine(items: Sequence[Item], num_actors: int) -> list[list[Item]]:
    """Split ``items`` over at most ``num_actors`` actors, each with something to do."""
    if num_actors < 1:
        raise ValueError("there must be at least one actor")
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    units = _split_until(list(groups.values()), min(num_actors, len(items)))
    units.sort(key=_load, reverse=True)
    actors: list[list[Item]] = [[] for _ in range(min(num_actors, len(units)))]
    heap = [(0.0, index) for index in range(len(actors))]
    for unit in units:
        load, index = heapq.heappop(heap)
        actors[index] += unit
        heapq.heappush(heap, (load + _load(unit), index))
    # An all-zero load could leave an actor without work.
    return [actor for actor in actors if actor]


def _split_until(units: list[list[Item]], count: int) -> list[list[Item]]:
    while len(units) < count:
        units.sort(key=lambda unit: (len(unit) > 1, _load(unit)))
        largest = units.pop()
        units += [largest[::2], largest[1::2]]
    return units


def _load(unit: Sequence[Item]) -> float:
    return sum(item.tokens for item in unit)
