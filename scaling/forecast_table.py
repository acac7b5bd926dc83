"""Many forecasts at once, as rows of arrays: what a look at thousands of running samples needs.

The mathematics of ``scaling.forecasts``, which describes it. All lengths are in tokens. Shapes:
``G`` forecasts, ``S`` points of the longest support, ``N`` samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from scaling.arrays import Bools, Floats, Ints, sums_by

if TYPE_CHECKING:
    from scaling.forecasts import Forecast

NEWTON_STEPS = 12
STEPS_PER_OCTAVE = 4
NEVER = -1e9
"""Logarithm of a probability of nothing; finite, so that sums stay ordered."""
_FAR = 8.0
"""Standard deviations beyond which the normal distribution's hazard is its asymptote."""


@dataclass(frozen=True, eq=False)
class ForecastTable:
    """``support[G, S]``: ascending, each row's last value repeated beyond its ``size[G]`` points;
    ``max_tokens``, ``between`` and ``scatter`` ``[G]``, as in ``Forecast``."""

    support: Floats
    size: Ints
    max_tokens: Floats
    between: Floats
    scatter: Floats

    @classmethod
    def of(cls, forecasts: Sequence[Forecast]) -> ForecastTable:
        size = np.array([len(f.support) for f in forecasts], np.int64)
        width = int(size.max(initial=1))
        rows = [
            f.support if len(f.support) == width else _widened(f.support, width) for f in forecasts
        ]
        return cls(
            support=np.array(rows, np.float64).reshape(len(rows), width),
            size=size,
            max_tokens=np.array([f.max_tokens for f in forecasts], np.float64),
            between=np.array([f.between for f in forecasts], np.float64),
            scatter=np.array([f.scatter for f in forecasts], np.float64),
        )

    @cached_property
    def mean(self) -> Floats:
        """``[G]``."""
        return self._sums[:, -1] / self.size

    def log_within(self) -> Floats:
        """``[G, J]``: logarithms of P(length <= grid(j)), up to the first j where all are 0; two
        columns at least."""
        columns = math.ceil(STEPS_PER_OCTAVE * math.log2(max(self.support.max(initial=1.0), 2.0)))
        points = grid_points(columns + 2)
        # Of sorted values: how many of a row's are within each point.
        counts = np.array(
            [
                np.searchsorted(row[:size], points, side="right")
                for row, size in zip(self.support, self.size, strict=True)
            ],
            np.int64,
        ).reshape(len(self.size), len(points))
        shares = counts / self.size[:, None]
        logs: Floats = np.where(counts > 0, np.log(np.maximum(shares, 1e-300)), NEVER)
        full = (counts == self.size[:, None]).all(axis=0)
        return logs[:, : max(2, int(np.argmax(full)) + 1)]

    def remaining(self, rows: Ints, generated: Ints) -> Floats:
        """``[N]``: ``Forecast.remaining`` of samples of the forecasts ``rows``."""
        return self._remaining(rows, generated, self._outlived(rows, generated))

    def late(self, rows: Ints, generated: Ints, number: int) -> tuple[Floats, Floats]:
        """``[N]`` each: ``Forecast.remaining`` and ``Forecast.late``."""
        first = self._outlived(rows, generated)
        expected = self._remaining(rows, generated, first)
        alive = self.size[rows] - first
        place = np.minimum(first + alive * number // (number + 1), self.size[rows] - 1)
        last = np.where(alive > 0, self.support[rows, place] - generated, 0.0)
        return expected, np.maximum(expected, last)

    def take(self, rows: Ints) -> ForecastTable:
        """Some of the forecasts."""
        part = ForecastTable(
            self.support[rows],
            self.size[rows],
            self.max_tokens[rows],
            self.between[rows],
            self.scatter[rows],
        )
        # Logarithms are what costs most, and are asked for again and again.
        vars(part).update(_logs=self._logs[rows], _centre=self._centre[rows])
        return part

    def with_siblings(
        self, ended_rows: Ints, ended: Ints, running_rows: Ints, running: Ints
    ) -> ForecastTable:
        """What is to be expected of each once siblings (samples of the forecasts ``ended_rows`` and
        ``running_rows``) ended after ``ended`` tokens, others have generated ``running``."""
        begun = running > 0
        running_rows, running = running_rows[begun], running[begun]
        centre = self._centre
        ended_logs = np.log(np.maximum(ended, 1)) - centre[ended_rows]
        reached = np.log(running) - centre[running_rows]
        shift, variance = self._posterior(ended_rows, ended_logs, running_rows, reached)
        narrow = np.sqrt((self.scatter + variance) / (self.scatter + self.between))
        moved = np.exp((centre + shift)[:, None] + narrow[:, None] * (self._logs - centre[:, None]))
        told = np.zeros(len(self.size), np.bool_)
        told[ended_rows] = told[running_rows] = True
        support = np.clip(moved, 1.0, self.max_tokens[:, None])
        return replace(
            self,
            support=np.where(told[:, None], support, self.support),
            between=np.where(told, variance, self.between),
        )

    def _posterior(
        self, ended_rows: Ints, ended: Floats, running_rows: Ints, reached: Floats
    ) -> tuple[Floats, Floats]:
        """``[G]`` modes and variances of δ given log lengths ``ended`` and censored ``reached``,
        both relative to the prior's mean."""
        size = len(self.size)
        count = np.bincount(ended_rows, minlength=size)
        total = sums_by(ended_rows, ended, size)
        sigma = np.sqrt(self.scatter)[running_rows]
        shift = total / (count + self.scatter / self.between)  # but for those that still run
        for _ in range(NEWTON_STEPS):
            a = (reached - shift[running_rows]) / sigma
            hazard = _hazard(a)
            slope = (total - count * shift) / self.scatter - shift / self.between
            slope += sums_by(running_rows, hazard / sigma, size)
            information = 1 / self.between + count / self.scatter
            curve = hazard * (hazard - a) / self.scatter[running_rows]
            information += sums_by(running_rows, curve, size)
            step = slope / information
            shift += step
            if np.abs(step).max(initial=0.0) < 1e-6:
                break
        return shift, 1 / information

    def _outlived(self, rows: Ints, generated: Ints) -> Ints:
        """``[N]``: how many points of its support a sample has outlived."""
        # One search in all rows laid end to end, each beyond the one before.
        span = self.support.max(initial=1.0) + 1
        row = np.arange(len(self.size))
        laid = (self.support + span * row[:, None]).ravel()
        reached = span * rows + np.minimum(generated, span - 1)
        before = rows * self.support.shape[1]
        within: Ints = np.searchsorted(laid, reached, side="right") - before
        return np.minimum(within, self.size[rows])

    def _remaining(self, rows: Ints, generated: Ints, first: Ints) -> Floats:
        left = self.max_tokens[rows] - generated
        again = np.minimum(np.maximum(generated, self.mean[rows]), left)
        alive = self.size[rows] - first
        above = self._sums[rows, -1] - self._sums[rows, first]
        expected = (above - alive * generated + again) / (alive + 1)
        bounded: Floats = np.maximum(1.0, np.minimum(expected, left))
        return bounded

    @cached_property
    def _inside(self) -> Bools:
        """``[G, S]``: which points are not there only to fill a row."""
        return np.arange(self.support.shape[1]) < self.size[:, None]

    @cached_property
    def _logs(self) -> Floats:
        return np.log(self.support)

    @cached_property
    def _centre(self) -> Floats:
        """``[G]``: means of the logarithms."""
        centre: Floats = self._logs.sum(axis=1, where=self._inside) / self.size
        return centre

    @cached_property
    def _sums(self) -> Floats:
        """``[G, S + 1]``: sums of the first points of each row."""
        sums = np.zeros((len(self.size), self.support.shape[1] + 1))
        np.cumsum(np.where(self._inside, self.support, 0.0), axis=1, out=sums[:, 1:])
        return sums


def grid_points(count: int) -> Floats:
    """The first ``count`` lengths at which distributions are tabulated: 1, 1.19, 1.41, 1.68, 2 ...
    tokens."""
    points: Floats = 2.0 ** (np.arange(count) / STEPS_PER_OCTAVE)
    return points


def _widened(support: tuple[float, ...], width: int) -> tuple[float, ...]:
    return support + support[-1:] * (width - len(support))


def _hazard(a: Floats) -> Floats:
    """φ(a) / (1 − Φ(a)) of the standard normal distribution, to about 1e-6."""
    points, values = _hazard_table()
    far = a + 1 / np.maximum(a, _FAR)
    return np.where(a > _FAR, far, np.interp(a, points, values))


@cache
def _hazard_table() -> tuple[Floats, Floats]:
    points = np.linspace(-_FAR, _FAR, 8001)
    values = [
        math.exp(-a * a / 2) / math.sqrt(2 * math.pi) / (math.erfc(a / math.sqrt(2)) / 2)
        for a in points.tolist()
    ]
    return points, np.array(values)
