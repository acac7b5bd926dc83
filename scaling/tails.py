"""The longest of many responses, and the last of many actors: expectations, not medians.

With long tails the expected maximum is far from the maximum of expectations: sixteen actors whose
longest responses each have a median of 1,000 tokens almost surely hold one of the 2,500 the limit
allows. Distributions are kept as P(longest <= x) on the grid x = 2^(j/4) tokens (a step of 19 %),
with straight lines between; the product over independent responses is a sum of logarithms.

E[max] = floor + ∫ (1 − P(max <= x)) dx from the floor, below which the maximum cannot lie. Worked
number: 8 responses uniform over 1 .. 100 have an expected longest of 100 · 8/9 = 89.

All is done for many actors at once. Shapes: ``A`` actors, ``J`` points of the grid, ``P`` plans.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scaling.arrays import Floats, Ints
from scaling.forecast_table import STEPS_PER_OCTAVE, grid_points

_POINTS = 32
"""At which the distribution of the last actor's end is evaluated."""


@dataclass(frozen=True, eq=False)
class Longest:
    """Distributions of the longest of actors' responses: ``floor[A]`` tokens at least, ``most[A]``
    at most; ``within[A, J]`` is P(longest <= grid(j)) of those that are not certain, 1 in the last
    column."""

    floor: Floats
    most: Floats
    within: Floats

    def at_most(self, tokens: Floats) -> Floats:
        """P(longest <= tokens) ``[A, T]`` at ``tokens[A, T]``."""
        columns = self.within.shape[1]
        place = (STEPS_PER_OCTAVE * np.log2(np.maximum(tokens, 1.0))).astype(np.int64)
        sure = (tokens >= self.most[:, None]) | (place + 1 >= columns)
        place = np.minimum(place, columns - 2)
        grid = grid_points(columns)
        start, end = grid[place], np.minimum(grid[place + 1], self.most[:, None])
        share = np.clip((tokens - start) / np.maximum(end - start, 1e-9), 0.0, 1.0)
        rows = np.arange(len(self.floor))[:, None]
        low, high = self.within[rows, place], self.within[rows, place + 1]
        between = low + (high - low) * share
        # A time at which the floor is reached may come back as a token less a rounding error.
        below = tokens < self.floor[:, None] * (1 - 1e-9)
        return np.where(below, 0.0, np.where(sure, 1.0, between))

    def mean(self) -> Floats:
        """``[A]``: expected tokens of the longest."""
        first = (STEPS_PER_OCTAVE * np.log2(np.maximum(self.floor, 1.0))).astype(np.int64) + 1
        grid = grid_points(self.within.shape[1])
        beyond = np.arange(len(grid)) >= first[:, None]
        # A walk from the floor over the points beyond it: those before count as the floor.
        at = np.where(beyond, np.minimum(grid, self.most[:, None]), self.floor[:, None])
        at_floor = 1 - self.at_most(self.floor[:, None])
        missing = np.where(beyond, 1 - self.within, at_floor)
        steps = np.diff(at, axis=1, prepend=self.floor[:, None])
        heights = missing + np.concatenate([at_floor, missing[:, :-1]], axis=1)
        mean: Floats = self.floor + (steps * heights).sum(axis=1) / 2
        return mean


@dataclass(frozen=True, eq=False)
class Finish:
    """When actors are done: ``rest_s[A] + token_s · longest``."""

    rest_s: Floats
    token_s: float
    longest: Longest

    def mean(self) -> Floats:
        """``[A]`` expected seconds."""
        return self.rest_s + self.token_s * self.longest.mean()

    def by(self, seconds: Floats) -> Floats:
        """``[A, T]``: probability that an actor is done by ``seconds[A, T]``."""
        if self.token_s <= 0:
            return (seconds >= self.rest_s[:, None]).astype(np.float64)
        return self.longest.at_most((seconds - self.rest_s[:, None]) / self.token_s)

    def last(self, plan: Ints) -> Floats:
        """``[P]``: expected seconds until the last actor of each plan is done. ``plan[A]``,
        ascending from 0: whose actor each is."""
        starts = np.flatnonzero(np.diff(plan, prepend=-1))
        low = np.maximum.reduceat(self.rest_s + self.token_s * self.longest.floor, starts)
        high = np.maximum.reduceat(self.rest_s + self.token_s * self.longest.most, starts)
        # Most mass lies near the low end where tails are short and anywhere where they are long.
        spread = (np.arange(_POINTS + 1) / _POINTS) ** 1.5
        times = low[:, None] + (high - low)[:, None] * spread
        missing = 1 - np.multiply.reduceat(self.by(times[plan]), starts, axis=0)
        heights = missing[:, 1:] + missing[:, :-1]
        last: Floats = low + (np.diff(times, axis=1) * heights).sum(axis=1) / 2
        return last


def longest(logs: Floats, most: Floats, floor: Floats) -> Longest:
    """The longest of independent responses: ``logs[A, J]`` sums of their ``log_within``,
    ``most[A]`` the largest of their supports, ``floor[A]`` a length that one has for certain."""
    return Longest(floor, np.maximum(most, floor), np.exp(logs))
