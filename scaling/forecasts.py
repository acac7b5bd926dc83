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

The arithmetic is that of ``scaling.forecast_table``, which does it for many forecasts at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from scaling.forecast_table import ForecastTable


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
        return sum(self.support) / len(self.support)

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
        rows, done = np.zeros(1, np.int64), np.array([generated])
        return float(self._table.remaining(rows, done)[0])

    def late(self, generated: int, number: int) -> float:
        """Further tokens of a response that has ``generated``, should it turn out the longest of
        ``number`` that run: the number / (number + 1) quantile of what remains, and no less than
        ``remaining``. Worked number: uniform over 1 .. 100, nothing generated, 9 run: 91."""
        rows, done = np.zeros(1, np.int64), np.array([generated])
        return float(self._table.late(rows, done, number)[1][0])

    def with_siblings(self, finished: Sequence[int], running: Sequence[int] = ()) -> Forecast:
        """What is to be expected once siblings ended after ``finished`` tokens and others have
        generated ``running`` tokens without ending."""
        if not finished and not any(tokens > 0 for tokens in running):
            return self
        told = self._table.with_siblings(
            np.zeros(len(finished), np.int64),
            np.array(finished, np.int64),
            np.zeros(len(running), np.int64),
            np.array(running, np.int64),
        )
        return replace(self, support=tuple(told.support[0].tolist()), between=told.between.item())

    @cached_property
    def log_within(self) -> tuple[float, ...]:
        """Logarithms of P(length <= grid(j)), up to the first that is 0."""
        return tuple(self._table.log_within()[0].tolist())

    @cached_property
    def _table(self) -> ForecastTable:
        return ForecastTable.of([self])


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
