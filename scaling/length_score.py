"""How good the length predictions of a step were. Metrics of every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from scaling.arrays import Floats
from scaling.forecasts import Forecast


def score(
    forecasts: Mapping[str, Forecast], actual: Mapping[str, Sequence[int]]
) -> dict[str, float]:
    """Compare forecasts (by prompt key) with the lengths that came.

    ``rank_correlation``: Spearman's, over single responses, ties shared; left out where either side
    is constant. ``coverage_pXX``: share of responses within the forecast's quantile (0.5 and 0.9
    are right). ``mean_error``: mean absolute error over the mean length.
    """
    counts = [len(lengths) for lengths in actual.values()]
    came = np.array([n for lengths in actual.values() for n in lengths], np.float64)
    if not len(came):
        return {}
    metrics = {}
    for q in (0.5, 0.9):
        bounds = np.repeat([forecasts[key].quantile(q) for key in actual], counts)
        metrics[f"lengths/coverage_p{round(100 * q)}"] = float((came <= bounds).mean())
    means = np.repeat([forecasts[key].mean for key in actual], counts)
    metrics["lengths/mean_error"] = float(np.abs(means - came).sum() / max(1.0, came.sum()))
    correlation = spearman(means, came)
    if correlation is not None:
        metrics["lengths/rank_correlation"] = correlation
    return metrics


def spearman(a: Floats, b: Floats) -> float | None:
    """Pearson's correlation of the ranks of ``a[N]`` and ``b[N]``; None where one side does not
    vary."""
    x, y = _ranks(a) - (len(a) + 1) / 2, _ranks(b) - (len(b) + 1) / 2
    xx, yy = float(x @ x), float(y @ y)
    if xx == 0 or yy == 0:
        return None
    return float(x @ y / np.sqrt(xx * yy))


def _ranks(values: Floats) -> Floats:
    """``[N]``: ranks from 1; equal values share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    shared: Floats = last - (count - 1) / 2
    return shared[place]
