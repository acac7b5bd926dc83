"""How good the length predictions of a step were. Metrics of every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaling.forecasts import Forecast


def score(
    forecasts: Mapping[str, Forecast], actual: Mapping[str, Sequence[int]]
) -> dict[str, float]:
    """Compare forecasts (by prompt key) with the lengths that came.

    ``rank_correlation``: Spearman's, over single responses, ties shared; left out where either side
    is constant. ``coverage_pXX``: share of responses within the forecast's quantile (0.5 and 0.9
    are right). ``mean_error``: mean absolute error over the mean length.
    """
    pairs = [(forecasts[key], n) for key, lengths in actual.items() for n in lengths]
    if not pairs:
        return {}
    metrics = {
        f"lengths/coverage_p{round(100 * q)}": sum(n <= f.quantile(q) for f, n in pairs)
        / len(pairs)
        for q in (0.5, 0.9)
    }
    total = sum(n for _, n in pairs)
    metrics["lengths/mean_error"] = sum(abs(f.mean - n) for f, n in pairs) / max(1, total)
    correlation = spearman([f.mean for f, _ in pairs], [float(n) for _, n in pairs])
    if correlation is not None:
        metrics["lengths/rank_correlation"] = correlation
    return metrics


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Pearson's correlation of the ranks; None where one side does not vary."""
    x, y = _ranks(a), _ranks(b)
    mean = (len(x) + 1) / 2
    xx = sum((i - mean) ** 2 for i in x)
    yy = sum((j - mean) ** 2 for j in y)
    if xx == 0 or yy == 0:
        return None
    return float(sum((i - mean) * (j - mean) for i, j in zip(x, y, strict=True)) / (xx * yy) ** 0.5)


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + 1 + end) / 2
        start = end
    return ranks
