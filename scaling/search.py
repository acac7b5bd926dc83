"""Which numbers to try where there are too many to try all.

A score over the number of actors falls and rises again, nearly: whole groups do not divide evenly,
and cold starts and full rows make kinks. So a geometric grid is tried, and the numbers at which
kinks are expected; then the gaps beside the best are halved until they are within ``FINEST`` of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

RATIO = 1.5
"""Between neighbours of the grid."""
FINEST = 0.02
"""Gaps beside the best, relative to it, that are not halved any more."""
MOST_TRIED = 48
"""The grid of a thousand has eighteen numbers, and its halving another dozen."""


def spread(low: int, high: int, kinks: Iterable[int] = ()) -> list[int]:
    """Numbers of ``low .. high`` to begin with, ascending, both ends among them."""
    numbers = {low, high, *(kink for kink in kinks if low < kink < high)}
    at = float(low)
    while at < high:
        numbers.add(round(at))
        at = max(at + 1, at * RATIO)
    return sorted(numbers)


def refine(
    tried: list[int],
    score: Callable[[int], tuple[float, float]],
    attempt: Callable[[list[int]], None],
) -> None:
    """Add to ``tried`` (ascending) by ``attempt`` what lies beside the best ``score``."""
    while len(tried) < MOST_TRIED:
        place = min(range(len(tried)), key=lambda i: score(tried[i]))
        best = tried[place]
        widest = max(1.0, FINEST * best)
        beside = [tried[place - 1]] * (place > 0) + tried[place + 1 : place + 2]
        new = [(best + other) // 2 for other in beside if abs(best - other) > widest]
        new = [number for number in new if number not in tried]
        if not new:
            return
        attempt(new)
        for number in new:
            tried.insert(bisect_left(tried, number), number)
