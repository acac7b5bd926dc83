"""Which actor generates which sample: the candidate plans.

Each strategy deals every item out exactly once over at most ``num_actors`` actors, none of them
empty; ``scaling.actors`` scores the candidates with the cost model.

| strategy | idea | good for |
|---|---|---|
| ``random`` | equal counts, by seed | the baseline: what a serverful framework does |
| ``balanced`` | equal predicted work (Karmarkar-Karp, the largest differencing method), or \
equal finishing times | time |
| ``sorted`` | neighbours in the list sorted by length, chunks of equal time | cost: short actors \
leave early (RLHFless); it does not shorten the makespan |
| ``group_affine`` | the samples of a prompt together, largest group to the least loaded (LPT, \
Graham 1969) | long prompts: each is prefilled once |
"""

from __future__ import annotations

import heapq
import random as rng
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise

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


def finishing_together(
    items: Sequence[Item], num_actors: int, longest_s: float = 1.0, token_s: float = 1.0
) -> Assignment:
    """Parts that are done at nearly the same time: longest first, each to the actor that is done
    first (LPT). Times as in ``length_sorted``: whoever has a long sample gets less beside it, which
    equal sums of work do not give it. For predictions as rough as real ones equal work is as good;
    both are candidates.
    """
    number = _number(items, num_actors)
    actors: Assignment = [[] for _ in range(number)]
    heap = [(0.0, 0, index) for index in range(number)]
    for item in sorted(items, key=lambda item: (-item.remaining, item.group)):
        done_s, size, index = heapq.heappop(heap)
        done_s += token_s * item.remaining + (0.0 if size else longest_s * item.remaining)
        actors[index].append(item)
        heapq.heappush(heap, (done_s, size + 1, index))
    return _without_empty(actors)


def length_sorted(
    items: Sequence[Item], num_actors: int, longest_s: float = 1.0, token_s: float = 1.0
) -> Assignment:
    """Contiguous chunks of the list sorted by length, the slowest chunk as fast as possible.

    A chunk takes ``longest_s`` for each token of its longest sample and ``token_s`` for every
    token. The smallest limit that ``num_actors`` chunks can keep is found by bisection; for a
    limit, chunks filled from the longest sample on are the fewest, and each begins with the
    shortest sample it can, so the sum of their times is least as well.
    """
    ordered = sorted(items, key=lambda item: (-item.remaining, item.group))
    lengths = [item.remaining for item in ordered]
    sums = [0.0, *accumulate(lengths)]
    number = _number(items, num_actors)
    low = (longest_s + token_s) * lengths[0]
    high = low + token_s * sums[-1]
    for _ in range(40):
        if high - low <= 1e-4 * high:
            break
        middle = (low + high) / 2
        if _cuts(lengths, sums, middle, longest_s, token_s, number) is None:
            low = middle
        else:
            high = middle
    cuts = _cuts(lengths, sums, high, longest_s, token_s, number)
    assert cuts is not None
    return [ordered[start:end] for start, end in pairwise([*cuts, len(ordered)])]


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


def _cuts(
    lengths: Sequence[float],
    sums: Sequence[float],
    limit: float,
    longest_s: float,
    token_s: float,
    number: int,
) -> list[int] | None:
    """Where chunks within ``limit`` begin, exactly ``number`` of them; None if that needs more."""
    cuts = [0]
    while len(cuts) < number:
        start = cuts[-1]
        tokens = (limit - longest_s * lengths[start]) / token_s if token_s else float("inf")
        end = bisect_right(sums, sums[start] + tokens * (1 + 1e-12)) - 1
        # Whoever comes after gets one item at least.
        cuts.append(max(start + 1, min(end, len(lengths) - (number - len(cuts)))))
    last = longest_s * lengths[cuts[-1]] + token_s * (sums[-1] - sums[cuts[-1]])
    return cuts if last <= limit * (1 + 1e-12) else None


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
