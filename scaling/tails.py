"""The longest of many responses, and the last of many actors: expectations, not medians.

With long tails the expected maximum is far from the maximum of expectations: sixteen actors whose
longest responses each have a median of 1,000 tokens almost surely hold one of the 2,500 the limit
allows. Distributions are kept as P(longest <= x) on the grid x = 2^(j/4) tokens (a step of 19 %),
with straight lines between; the product over independent responses is a sum of logarithms.

E[max] = floor + ∫ (1 − P(max <= x)) dx from the floor, below which the maximum cannot lie. Worked
number: 8 responses uniform over 1 .. 100 have an expected longest of 100 · 8/9 = 89.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.forecasts import STEPS_PER_OCTAVE, Forecast, grid


@dataclass(frozen=True)
class Longest:
    """Distribution of the longest of some responses: ``floor`` tokens at least, ``most`` at most;
    ``within[j]`` is P(longest <= grid(j)) of those that are not certain, 1 beyond the end."""

    floor: float
    most: float
    within: tuple[float, ...] = ()

    def at_most(self, tokens: float) -> float:
        """P(longest <= tokens)."""
        if tokens < self.floor:
            return 0.0
        low = int(STEPS_PER_OCTAVE * math.log2(max(tokens, 1.0)))
        if tokens >= self.most or low + 1 >= len(self.within):
            return 1.0
        start, end = grid(low), min(grid(low + 1), self.most)
        share = (tokens - start) / (end - start)
        return self.within[low] * (1 - share) + self.within[low + 1] * share

    def mean(self) -> float:
        """Expected tokens of the longest."""
        at, missing = self.floor, 1 - self.at_most(self.floor)
        total = at
        for j in range(int(STEPS_PER_OCTAVE * math.log2(max(at, 1.0))) + 1, len(self.within)):
            x = min(grid(j), self.most)
            total += (x - at) * (missing + 1 - self.within[j]) / 2
            at, missing = x, 1 - self.within[j]
        return total


def longest(forecasts: Sequence[tuple[Forecast, int]], floor: float = 1.0) -> Longest:
    """The longest of independent responses, (forecast, how many) each; ``floor`` is a length that
    one has for certain."""
    most = max([floor, *(forecast.support[-1] for forecast, _ in forecasts)])
    size = max((len(forecast.log_within) for forecast, _ in forecasts), default=0)
    logs = [0.0] * size
    for forecast, number in forecasts:
        for j, log in enumerate(forecast.log_within):
            logs[j] += number * log
    return Longest(floor, most, tuple(math.exp(log) for log in logs))


@dataclass(frozen=True)
class Finish:
    """When an actor is done: ``rest_s + token_s · longest``."""

    rest_s: float
    token_s: float
    longest: Longest

    def mean(self) -> float:
        return self.rest_s + self.token_s * self.longest.mean()

    def by(self, seconds: float) -> float:
        """Probability that it is done by then."""
        if self.token_s <= 0:
            return 1.0 if seconds >= self.rest_s else 0.0
        return self.longest.at_most((seconds - self.rest_s) / self.token_s)


def last(actors: Sequence[Finish], points: int = 32) -> float:
    """Expected seconds until the last of the actors is done."""
    low = max(a.rest_s + a.token_s * a.longest.floor for a in actors)
    high = max(a.rest_s + a.token_s * a.longest.most for a in actors)
    # Most mass lies near the low end where tails are short and anywhere where they are long.
    times = [low + (high - low) * (i / points) ** 1.5 for i in range(points + 1)]
    total, at, missing = low, low, 1 - math.prod(a.by(low) for a in actors)
    for seconds in times[1:]:
        now = 1 - math.prod(a.by(seconds) for a in actors)
        total += (seconds - at) * (missing + now) / 2
        at, missing = seconds, now
    return total
