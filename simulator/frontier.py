"""Which ways of running a job are worth considering: the frontier of time and cost, its knee."""

from __future__ import annotations

from collections.abc import Sequence

Point = tuple[float, float]
"""(time, cost), both the less the better, in any unit."""


def frontier(points: Sequence[Point]) -> tuple[int, ...]:
    """Indices of the points that no other beats in one respect without being worse in the other,
    the fastest first; of equal points the first."""
    ranked = sorted(range(len(points)), key=lambda i: (points[i], i))
    kept: list[int] = []
    for index in ranked:
        if not kept or points[index][1] < points[kept[-1]][1]:
            kept.append(index)
    return tuple(kept)


def knee(points: Sequence[Point]) -> int | None:
    """Index of the point of a frontier (the fastest first) where more of one begins to cost much
    of the other: Kneedle (Satopää et al. 2011) for a convex falling curve. Time and cost are scaled
    to 0..1 over the frontier; the knee lies farthest below the chord between its ends.

    None where no point lies below the chord, as with fewer than three. Worked number: of (1, 10),
    (2, 4), (11, 0) the second, which lies at (0.1, 0.4): 1 - 0.1 - 0.4 = 0.5 below the chord.
    """
    if len(points) < 3:
        return None
    (fast, dear), (slow, cheap) = points[0], points[-1]
    below = [
        1 - (time - fast) / (slow - fast) - (cost - cheap) / (dear - cheap) for time, cost in points
    ]
    best = max(range(len(points)), key=lambda i: below[i])
    return best if below[best] > 1e-9 else None
