"""Which actor generates which sample: the candidate plans.

Each strategy deals every item out exactly once over at most ``num_actors`` actors, none of them
empty; ``scaling.actors`` scores the candidates with the cost model.

| strategy | idea | good for |
|---|---|---|
| ``random`` | equal counts, by seed | the baseline: what a serverful framework does |
| ``balanced`` | equal predicted work (Karmarkar-Karp, the largest differencing method) | time |
| ``sorted`` | neighbours in the list sorted by length, chunks of equal time | cost: short actors \
leave early (RLHFless); it does not shorten the makespan |
| ``group_affine`` | the samples of a prompt together, largest group to the least loaded (LPT, \
Graham 1969) | long prompts: each is prefilled once |
"""

from __future__ import annotations

import heapq
import random as rng
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from scaling.forecasts import Forecast


@dataclass(frozen=True)
class Item:
    """A sample to place: its prompt's number and its predicted length in tokens.

    ``prompt_tokens`` long is its prompt; ``generated`` tokens of the response exist already.
    ``forecast`` None: ``tokens`` is certain.
    """

    id: str
    group: int
    tokens: float
    prompt_tokens: int = 0
    generated: int = 0
    forecast: Forecast | None = None

    @property
    def remaining(self) -> float:
        """Tokens still to generate."""
        return max(1.0, self.tokens - self.generated)


Assignment = list[list[Item]]
Work = Callable[[Item], float]


def tokens_to_do(item: Item) -> float:
    return item.remaining


def random_equal(items: Sequence[Item], num_actors: int, seed: int = 0) -> Assignment:
    """Equal counts in an order drawn by ``seed``."""
    shuffled = list(items)
    rng.Random(seed).shuffle(shuffled)
    number = _number(items, num_actors)
    return [shuffled[i::number] for i in range(number)]


def balanced(items: Sequence[Item], num_actors: int, work: Work = tokens_to_do) -> Assignment:
    """Parts of nearly equal work: multiway Karmarkar-Karp.

    Partial solutions are merged, the most uneven two first, the heaviest part of one with the
    lightest of the other, until one is left. Cost: n merges of ``num_actors`` parts.
    """
    number = _number(items, num_actors)
    tie = count()
    heap: list[tuple[float, int, list[tuple[float, list[Item]]]]] = []
    for item in items:
        parts: list[tuple[float, list[Item]]] = [(0.0, []) for _ in range(number - 1)]
        parts.append((work(item), [item]))
        heap.append((-work(item), next(tie), parts))
    heapq.heapify(heap)
    while len(heap) > 1:
        _, _, left = heapq.heappop(heap)
        _, _, right = heapq.heappop(heap)
        merged = sorted(
            ((a + b, x + y) for (a, x), (b, y) in zip(left, reversed(right), strict=True)),
            key=lambda part: part[0],
        )
        heapq.heappush(heap, (merged[0][0] - merged[-1][0], next(tie), merged))
    return _without_empty([part for _, part in heap[0][2]])


def length_sorted(
    items: Sequence[Item],
    num_actors: int,
    seconds: Callable[[float, float], float] = lambda longest, total: longest + total,
) -> Assignment:
    """Contiguous chunks of the list sorted by length, the slowest chunk as fast as possible.

    ``seconds(longest, total)`` is the time of a chunk by its longest and its sum of remaining
    tokens, growing in both. The smallest time that ``num_actors`` greedy chunks can keep is found
    by bisection.
    """
    ordered = sorted(items, key=lambda item: -item.remaining)
    number = _number(items, num_actors)
    low, high = 0.0, seconds(ordered[0].remaining, sum(i.remaining for i in ordered))
    best = _chunks(ordered, number, high, seconds)
    for _ in range(40):
        middle = (low + high) / 2
        chunks = _chunks(ordered, number, middle, seconds)
        if chunks is None:
            low = middle
        else:
            best, high = chunks, middle
    assert best is not None
    return best


def group_affine(items: Sequence[Item], num_actors: int, work: Work = tokens_to_do) -> Assignment:
    """Whole groups, heaviest first, each to the least loaded actor. With fewer groups than actors
    the heaviest are split in halves until every actor has work."""
    number = _number(items, num_actors)
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)

    def load(unit: Sequence[Item]) -> float:
        return sum(map(work, unit))

    units = list(groups.values())
    while len(units) < number:
        units.sort(key=lambda unit: (len(unit) > 1, load(unit)))
        largest = units.pop()
        units += [largest[::2], largest[1::2]]
    units.sort(key=load, reverse=True)
    actors: Assignment = [[] for _ in range(number)]
    heap = [(0.0, 0, index) for index in range(number)]
    for unit in units:
        taken, size, index = heapq.heappop(heap)
        actors[index] += unit
        heapq.heappush(heap, (taken + load(unit), size + len(unit), index))
    return _without_empty(actors)


def _chunks(
    ordered: Sequence[Item],
    number: int,
    limit: float,
    seconds: Callable[[float, float], float],
) -> Assignment | None:
    """Greedy chunks within ``limit`` seconds, exactly ``number``; None if that needs more."""
    chunks: Assignment = []
    total = 0.0
    for place, item in enumerate(ordered):
        total += item.remaining
        left = len(ordered) - place
        full = not chunks or seconds(chunks[-1][0].remaining, total) > limit
        # Whoever has no work yet gets one item at least.
        if full or left <= number - len(chunks):
            if len(chunks) == number:
                return None
            chunks.append([])
            total = item.remaining
            if seconds(total, total) > limit:
                return None
        chunks[-1].append(item)
    return chunks


def _number(items: Sequence[Item], num_actors: int) -> int:
    if num_actors < 1:
        raise ValueError("there must be at least one actor")
    if not items:
        raise ValueError("there is nothing to assign")
    return min(num_actors, len(items))


def _without_empty(actors: Assignment) -> Assignment:
    """Work of nothing could leave an actor without an item: it gets one of the fullest."""
    for actor in actors:
        if not actor:
            actor.append(max(actors, key=len).pop())
    return actors
