"""Robust least squares with coefficients that are not negative, for a handful of features.

Minimises the Huber loss of relative residuals ``(y − θ·x) / (θ·x)`` by iteratively reweighted least
squares (Huber 1964, k = 1.345 times 1.48 MAD), then Tukey's biweight (k = 4.685) from there, so a
call that stalled for ten times its length counts for nothing and long calls do not drown short
ones. A weak prior keeps what the data cannot tell
apart near a documented proportion: coefficient j of the prior, scaled to the data, has a standard
deviation of ``PRIOR_SPREAD`` times itself. Non-negativity is exact: every subset of features is
solved, and the best of those without a negative coefficient taken (2^d small systems, d <= 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import median

ROUNDS = 10
"""Of each of the two weightings; fewer where nothing changes any more."""
HUBER = 1.345
TUKEY = 4.685
NOISE = 0.1
"""Relative noise of a measured call, against which the prior is weighed."""
PRIOR_SPREAD = 3.0
LEAST = 1e-100
"""Seconds that no call takes: less would overflow where it divides."""


def fit(
    rows: Sequence[Sequence[float]], seconds: Sequence[float], prior: Sequence[float]
) -> tuple[float, ...]:
    """Coefficients θ >= 0 with ``seconds[i] ≈ θ · rows[i]``.

    ``prior``: positive proportions of the coefficients. Rows without a positive feature, and
    negative times, are ignored; without any row left the prior comes back.
    """
    data = [
        (tuple(row), y)
        for row, y in zip(rows, seconds, strict=True)
        if y > 0 and _dot(prior, row) > LEAST
    ]
    if not data:
        return tuple(prior)
    scale = median(y / _dot(prior, row) for row, y in data)
    # In units of the scaled prior every coefficient is expected near 1.
    unit = [scale * p for p in prior]
    scaled = [([u * x for u, x in zip(unit, row, strict=True)], y) for row, y in data]
    theta = [1.0] * len(prior)
    for weight in (_huber, _tukey):
        for _ in range(ROUNDS):
            theta, before = _step(scaled, theta, weight), theta
            if max(abs(new - old) for new, old in zip(theta, before, strict=True)) < 1e-6:
                break
    return tuple(t * u for t, u in zip(theta, unit, strict=True))


def _huber(residual: float) -> float:
    return min(1.0, HUBER / max(abs(residual), 1e-12))


def _tukey(residual: float) -> float:
    return max(0.0, 1 - (residual / TUKEY) ** 2) ** 2


def _step(
    data: Sequence[tuple[list[float], float]],
    theta: Sequence[float],
    weight: Callable[[float], float],
) -> list[float]:
    """One weighted least-squares solution; ``weight`` of a residual in units of their spread."""
    predicted = [max(_dot(theta, row), 1e-12) for row, _ in data]
    residuals = [(y - p) / p for (_, y), p in zip(data, predicted, strict=True)]
    # No call is measured to less than half the noise, however well the others agree.
    spread = max(1.4826 * median(map(abs, residuals)), NOISE / 2)
    weights = [weight(r / spread) / (p * p) for r, p in zip(residuals, predicted, strict=True)]
    size = len(theta)
    ridge = (NOISE / PRIOR_SPREAD) ** 2
    normal = [
        [
            sum(w * row[i] * row[j] for w, (row, _) in zip(weights, data, strict=True))
            for j in range(size)
        ]
        for i in range(size)
    ]
    right = [
        sum(w * row[i] * y for w, (row, y) in zip(weights, data, strict=True)) for i in range(size)
    ]
    for i in range(size):
        # Keeps features that are nearly proportional apart in floating point.
        normal[i][i] += ridge + 1e-9 * normal[i][i]
        right[i] += ridge
    return _non_negative(normal, right)


def _non_negative(normal: list[list[float]], right: list[float]) -> list[float]:
    """The minimum of ``θᵀNθ / 2 − rᵀθ`` over θ >= 0; N is positive definite."""
    size = len(right)
    best, best_value = [0.0] * size, 0.0
    for count in range(1, size + 1):
        for chosen in combinations(range(size), count):
            part = _solve(
                [[normal[i][j] for j in chosen] for i in chosen], [right[i] for i in chosen]
            )
            if min(part) < 0:
                continue
            # At a solution of N θ = r the objective is −rᵀθ / 2.
            value = -sum(right[i] * t for i, t in zip(chosen, part, strict=True)) / 2
            if value < best_value:
                best = [0.0] * size
                for i, t in zip(chosen, part, strict=True):
                    best[i] = t
                best_value = value
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination of a positive definite system (no pivoting needed)."""
    size = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for i in range(size):
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
