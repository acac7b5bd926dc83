"""A predicted distribution of response lengths, and how siblings sharpen it.

``scaling.lengths`` makes a ``Forecast`` for a prompt from history; while a step runs, the lengths
of the samples of the same prompt that have ended, and those reached by samples that have not, say
more (Seer, arXiv 2511.14617: siblings predict length). All lengths are in tokens.

The distribution is a list of equally likely lengths (``support``). Siblings move and narrow it in
log space: the prompt's own deviation δ from its prediction has the prior N(μ, B), a response
scatters about it with variance S, a sample still running is a censored observation. The posterior
mode of δ is found by Newton's method (the log posterior is concave), its variance is the inverse
information there; the support is shifted by δ − μ and its spread scaled by
sqrt((S + var δ) / (S + B)). Worked number: B = S = 0.25, prediction 100, four siblings of 200
tokens ended: δ = ln 2 · 4 / (4 + 1) = 0.555, so the prediction becomes about 174 and the spread
shrinks by sqrt((0.25 + 0.05) / 0.5) = 0.77.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

NEWTON_STEPS = 12
STEPS_PER_OCTAVE = 4
_NEVER = -1e9
"""Logarithm of a probability of nothing; finite, so that sums stay ordered."""


def grid(j: int) -> float:
    """Lengths at which distributions are tabulated: 1, 1.19, 1.41, 1.68, 2 ... tokens."""
    return float(2 ** (j / STEPS_PER_OCTAVE))


@dataclass(frozen=True)
class Forecast:
    """Equally likely lengths, ascending, each within 1 .. ``max_tokens``.

    ``between`` (B) and ``scatter`` (S): variances of the logarithm of a prompt's mean about its
    prediction, and of single responses about their prompt's mean.
    """

    support: tuple[float, ...]
    max_tokens: int
    between: float = 0.5
    scatter: float = 0.5

    @cached_property
    def mean(self) -> float:
        """Expected length."""
        return self._above[0] / len(self.support)

    def quantile(self, q: float) -> float:
        """The length that a response stays within with probability ``q``."""
        place = q * len(self.support) - 0.5
        low = min(max(math.floor(place), 0), len(self.support) - 1)
        high = min(low + 1, len(self.support) - 1)
        share = min(max(place - low, 0.0), 1.0)
        return self.support[low] * (1 - share) + self.support[high] * share

    def remaining(self, generated: int) -> float:
        """Expected further tokens of a response that has ``generated`` and has not ended.

        The mean over the part of the support it has outlived, and one pseudo-observation that says
        it will last as long again (all there is once it has outlived everything seen). At least
        1, and at most what the limit leaves.
        """
        first = bisect_right(self.support, generated)
        alive = len(self.support) - first
        again = float(min(max(generated, self.mean), self.max_tokens - generated))
        expected = (self._above[first] - alive * generated + again) / (alive + 1)
        return max(1.0, min(expected, float(self.max_tokens - generated)))

    def late(self, generated: int, number: int) -> float:
        """Further tokens of a response that has ``generated``, should it turn out the longest of
        ``number`` that run: the number / (number + 1) quantile of what remains, and no less than
        ``remaining``. Worked number: uniform over 1 .. 100, nothing generated, 9 run: 91."""
        first = bisect_right(self.support, generated)
        alive = len(self.support) - first
        expected = self.remaining(generated)
        if not alive:
            return expected
        place = min(first + alive * number // (number + 1), len(self.support) - 1)
        return max(expected, self.support[place] - generated)

    def with_siblings(self, finished: Sequence[int], running: Sequence[int] = ()) -> Forecast:
        """What is to be expected once siblings ended after ``finished`` tokens and others have
        generated ``running`` tokens without ending."""
        running = [tokens for tokens in running if tokens > 0]
        if not finished and not running:
            return self
        logs = [math.log(length) for length in self.support]
        centre = sum(logs) / len(logs)
        ended = [math.log(max(1, tokens)) - centre for tokens in finished]
        reached = [math.log(tokens) - centre for tokens in running]
        shift, variance = _posterior(ended, reached, self.between, self.scatter)
        narrow = math.sqrt((self.scatter + variance) / (self.scatter + self.between))
        support = (math.exp(centre + shift + narrow * (log - centre)) for log in logs)
        return Forecast(
            tuple(min(max(1.0, length), float(self.max_tokens)) for length in support),
            self.max_tokens,
            between=variance,
            scatter=self.scatter,
        )

    @cached_property
    def log_within(self) -> tuple[float, ...]:
        """Logarithms of P(length <= grid(j)), up to the first that is 0."""
        logs: list[float] = []
        place = 0
        while place < len(self.support):
            place = bisect_right(self.support, grid(len(logs)))
            logs.append(math.log(place / len(self.support)) if place else _NEVER)
        return tuple(logs)

    @cached_property
    def _above(self) -> list[float]:
        """``[i]``: sum of ``support[i:]``; one entry more than the support."""
        return list(accumulate(reversed(self.support), initial=0.0))[::-1]


def certain(tokens: float) -> Forecast:
    """The forecast of somebody who knows."""
    return Forecast((float(tokens),), max(1, math.ceil(tokens)), between=1e-6, scatter=1e-6)


def quantile_blocks(values: Sequence[float], count: int) -> list[float]:
    """``values`` sorted and summarised by at most ``count`` numbers with the same mean."""
    ordered = sorted(values)
    if len(ordered) <= count:
        return ordered
    edges = [round(i * len(ordered) / count) for i in range(count + 1)]
    return [sum(ordered[start:end]) / (end - start) for start, end in pairwise(edges)]


def _posterior(
    ended: Sequence[float], reached: Sequence[float], between: float, scatter: float
) -> tuple[float, float]:
    """Mode and variance of δ given log lengths ``ended`` and censored ``reached``, both relative
    to the prior's mean."""
    sigma = math.sqrt(scatter)
    shift = 0.0
    information = 1 / between
    for _ in range(NEWTON_STEPS):
        slope = -shift / between + sum(x - shift for x in ended) / scatter
        information = 1 / between + len(ended) / scatter
        for x in reached:
            a = (x - shift) / sigma
            hazard = _hazard(a)
            slope += hazard / sigma
            information += hazard * (hazard - a) / scatter
        step = slope / information
        shift += step
        if abs(step) < 1e-6:
            break
    return shift, 1 / information


def _hazard(a: float) -> float:
    """φ(a) / (1 − Φ(a)) of the standard normal distribution."""
    if a > 8:
        return a + 1 / a
    return math.exp(-a * a / 2) / math.sqrt(2 * math.pi) / (math.erfc(a / math.sqrt(2)) / 2)
