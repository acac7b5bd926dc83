"""Which actor generates which sample: the candidate plans.

Each strategy deals every sample out exactly once over at most ``num_actors`` actors, none of them
empty; ``scaling.plans`` scores the candidates with the cost model. Within an actor the longest
come first, so that where samples queue none of them is left for last (``random`` has an order of
its own).

| strategy | idea | good for |
|---|---|---|
| ``random`` | equal counts, by seed | the baseline: what a serverful framework does |
| ``balanced`` | equal predicted work (Karmarkar-Karp, the largest differencing method; largest \
first where there are many samples), or equal finishing times | time |
| ``sorted`` | neighbours in the list sorted by length, chunks of equal time | cost: short actors \
leave early (RLHFless); it does not shorten the makespan |
| ``group_affine`` | the samples of a prompt together, largest group to the least loaded (LPT, \
Graham 1969) | long prompts: each is prefilled once |
"""

from __future__ import annotations

import heapq
import random as rng
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, count

import numpy as np

from scaling.arrays import Floats, Ints
from scaling.items import Dealing, Items

MOST_PARTS = 512
"""Samples times actors up to which work is balanced by Karmarkar-Karp. Its cost grows with this
product, and what it gains over largest first is at most what a sample weighs, hardly anything where
an actor has many."""


def random_equal(items: Items, num_actors: int, seed: int = 0) -> Dealing:
    """Equal counts in an order drawn by ``seed``."""
    number = _number(items, num_actors)
    shuffled = list(range(len(items)))
    rng.Random(seed).shuffle(shuffled)
    return Dealing(np.array(shuffled), np.arange(len(items)) % number, number)


def balanced(items: Items, num_actors: int, work: Floats) -> Dealing:
    """Parts of nearly equal ``work[N]``."""
    number = _number(items, num_actors)
    heaviest_first = np.argsort(-work, kind="stable")
    weights = work[heaviest_first].tolist()
    if 1 < number <= MOST_PARTS / len(weights):
        dealt = _largest_differencing(weights, number)
    else:
        dealt = _largest_first(weights, [0.0] * number, number)
    owner = np.empty(len(items), np.int64)
    owner[heaviest_first] = dealt
    return _dealing(items, owner, number)


def finishing_together(
    items: Items, num_actors: int, longest_s: float = 1.0, token_s: float = 1.0
) -> Dealing:
    """Parts that are done at nearly the same time: longest first, each to the actor that is done
    first (LPT). Times as in ``length_sorted``: whoever has a long sample gets less beside it, which
    equal sums of work do not give it. For predictions as rough as real ones equal work is as good;
    both are candidates.
    """
    number = _number(items, num_actors)
    lengths = items.remaining[items.longest_first]
    first = (longest_s * lengths[:number]).tolist()
    dealt = _largest_first((token_s * lengths).tolist(), first, number)
    owner = np.empty(len(items), np.int64)
    owner[items.longest_first] = dealt
    return _dealing(items, owner, number)


def length_sorted(
    items: Items, num_actors: int, longest_s: float = 1.0, token_s: float = 1.0
) -> Dealing:
    """Contiguous chunks of the list sorted by length, the slowest chunk as fast as possible.

    A chunk takes ``longest_s`` for each token of its longest sample and ``token_s`` for every
    token. The smallest limit that ``num_actors`` chunks can keep is found by bisection; for a
    limit, chunks filled from the longest sample on are the fewest, and each begins with the
    shortest sample it can, so the sum of their times is least as well.
    """
    number = _number(items, num_actors)
    lengths = items.remaining[items.longest_first].tolist()
    sums = [0.0, *accumulate(lengths)]
    # No chunk is quicker than the longest sample alone, nor all quicker than an even share.
    low = max((longest_s + token_s) * lengths[0], token_s * sums[-1] / number)
    high = longest_s * lengths[0] + token_s * sums[-1]
    cuts = _cuts(lengths, sums, low, longest_s, token_s, number)
    if cuts is None:
        cuts = _cuts(lengths, sums, high, longest_s, token_s, number)
        while high - low > 1e-4 * high:
            middle = (low + high) / 2
            found = _cuts(lengths, sums, middle, longest_s, token_s, number)
            if found is None:
                low = middle
            else:
                high, cuts = middle, found
    assert cuts is not None, "one actor's time is enough for all"
    sizes = np.diff([*cuts, len(lengths)])
    return Dealing(items.longest_first, np.repeat(np.arange(number), sizes), number)


def group_affine(items: Items, num_actors: int, work: Floats) -> Dealing:
    """Whole groups, heaviest first, each to the least loaded actor. With fewer groups than actors
    the heaviest are split in halves until every actor has work."""
    number = _number(items, num_actors)
    loads = np.bincount(items.group, work)
    unit = items.group
    if len(loads) < number:
        unit = _halved(items, work, number)
        loads = np.bincount(unit, work)
    heaviest_first = np.argsort(-loads, kind="stable")
    owner_of = np.empty(len(loads), np.int64)
    weights = loads[heaviest_first].tolist()
    owner_of[heaviest_first] = _largest_first(weights, [0.0] * number, number)
    return _dealing(items, owner_of[unit], number)


def _dealing(items: Items, owner: Ints, number: int) -> Dealing:
    """``owner[N]`` by sample."""
    order = items.longest_first
    return Dealing(order, owner[order], number)


def _largest_first(weights: Sequence[float], extra: Sequence[float], number: int) -> list[int]:
    """Each of ``weights`` (descending) to the least loaded of ``number`` actors. The first on an
    actor weighs its ``extra`` more."""
    if not weights[0]:  # what takes no time is dealt out evenly
        weights = [1.0] * len(weights)
    first = zip(weights[:number], extra, strict=True)
    heap = [(weight + more, index) for index, (weight, more) in enumerate(first)]
    heapq.heapify(heap)
    owners = list(range(number))
    for weight in weights[number:]:
        load, index = heap[0]
        heapq.heapreplace(heap, (load + weight, index))
        owners.append(index)
    return owners


def _largest_differencing(weights: Sequence[float], number: int) -> list[int]:
    """Multiway Karmarkar-Karp. Partial solutions are merged, the most uneven two first, the
    heaviest part of one with the lightest of the other, until one is left. Cost: n merges of
    ``number`` parts."""
    tie = count()
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for place, weight in enumerate(weights):
        parts: list[tuple[float, list[int]]] = [(0.0, []) for _ in range(number - 1)]
        parts.append((weight, [place]))
        heap.append((-weight, next(tie), parts))
    heapq.heapify(heap)
    while len(heap) > 1:
        _, _, left = heapq.heappop(heap)
        _, _, right = heapq.heappop(heap)
        merged = sorted(
            ((a + b, x + y) for (a, x), (b, y) in zip(left, reversed(right), strict=True)),
            key=lambda part: part[0],
        )
        heapq.heappush(heap, (merged[0][0] - merged[-1][0], next(tie), merged))
    owners = [0] * len(weights)
    for index, places in enumerate(_without_empty([part for _, part in heap[0][2]])):
        for place in places:
            owners[place] = index
    return owners


def _halved(items: Items, work: Floats, number: int) -> Ints:
    """``[N]``: units of samples, ``number`` of them: groups, the heaviest of them halved."""
    places: list[list[int]] = [[] for _ in items.groups]
    for place, group in enumerate(items.group.tolist()):
        places[group].append(place)
    tie = count()

    def entry(unit: list[int]) -> tuple[bool, float, int, list[int]]:
        return len(unit) == 1, -float(work[unit].sum()), next(tie), unit

    heap = [entry(unit) for unit in places]
    heapq.heapify(heap)
    while len(heap) < number:
        largest = heapq.heappop(heap)[-1]
        heapq.heappush(heap, entry(largest[::2]))
        heapq.heappush(heap, entry(largest[1::2]))
    unit_of = np.empty(len(items), np.int64)
    for number_of_unit, (_, _, _, unit) in enumerate(heap):
        unit_of[unit] = number_of_unit
    return unit_of


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


def _number(items: Items, num_actors: int) -> int:
    if num_actors < 1:
        raise ValueError("there must be at least one actor")
    if not len(items):
        raise ValueError("there is nothing to assign")
    return min(num_actors, len(items))


def _without_empty(actors: list[list[int]]) -> list[list[int]]:
    """Work of nothing could leave an actor without a sample: it gets one of the fullest."""
    for actor in actors:
        if not actor:
            actor.append(max(actors, key=len).pop())
    return actors
