"""A model of lengths from recorded ones.

Trend first: the slope of the steps' mean logarithms. Then, from what is left, robust deviations
(medians of distances between pairs, so that a heavy tail does not widen the body): within groups,
and between prompts from what samples of different groups differ beyond that; a prompt's persistence
from how its groups' medians in consecutive epochs vary together. The tail last: how many responses
are beyond three deviations where one in 740 should be, and how far (Hill's estimator, in which
responses cut at the cap count as censored).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rlhfless.errors import UserError
from simulator.random_numbers import Array
from simulator.workload import LengthModel
from simulator.workload_trace import Group

BEYOND = 3.0
"""Deviations above the median at which the tail begins."""
BEYOND_NORMAL = 0.00135
"""Share of a normal distribution that lies there."""
PAIRED = 4
"""Neighbours with which each sample is paired."""
MIN_TAIL = 20
"""Responses in the tail that its estimate needs."""
_MAD = 1.4826
"""From the median absolute deviation of a normal distribution to its standard deviation."""


def fit_lengths(groups: Sequence[Group], cap: int | None = None, seed: int = 0) -> LengthModel:
    """The model that recorded groups suggest. ``cap``: what cut them; default, the longest.

    Raises ``UserError`` without any group. What the groups cannot tell (persistence, with one
    epoch) keeps the model's default.
    """
    if not groups:
        raise UserError("no recorded lengths to fit to")
    longest = max(max(group.lengths) for group in groups)
    cap = max(longest, cap or 0)
    slope = _slope(groups)
    logs = [np.log(np.array(g.lengths, dtype=float)) - slope * g.step for g in groups]
    medians = np.array([float(np.median(each)) for each in logs])
    within, between = _deviations(logs)
    centre = float(np.median(np.concatenate(logs)))
    share, index = _tail(
        np.concatenate(logs) - centre,
        np.concatenate([np.array(group.lengths) >= cap for group in groups]),
        math.hypot(within, between),
    )
    model = LengthModel(
        median=math.exp(centre),
        cap=cap,
        between=between,
        within=within,
        tail_share=share,
        tail_index=index,
        growth=slope,
        growth_steps=max(group.step for group in groups) if slope else 0,
        seed=seed,
    )
    persistence = _persistence(groups, medians, between)
    return model if persistence is None else replace(model, persistence=persistence)


def _slope(groups: Sequence[Group]) -> float:
    """Growth of the logarithm a step: least squares over the steps' mean logarithms, and 0 where it
    is not twice its standard error."""
    by_step: dict[int, list[float]] = {}
    for group in groups:
        by_step.setdefault(group.step, []).extend(math.log(each) for each in group.lengths)
    if len(by_step) < 4:
        return 0.0
    steps = np.array(sorted(by_step), dtype=float)
    means = np.array([float(np.mean(by_step[int(step)])) for step in steps])
    away = steps - steps.mean()
    slope = float((away * means).sum() / (away**2).sum())
    left = means - means.mean() - slope * away
    error = math.sqrt(float((left**2).sum()) / (len(steps) - 2) / float((away**2).sum()))
    return slope if abs(slope) > 2 * error else 0.0


def _deviations(logs: Sequence[Array]) -> tuple[float, float]:
    """Within groups and between prompts: two samples of a group differ by the first alone, two of
    different groups by both. Medians of distances are those of normal variables."""
    shifts = range(1, PAIRED + 1)
    inside = [each[shift:] - each[:-shift] for each in logs for shift in shifts]
    across = [
        left[: len(right)] - right[: len(left)]
        for shift in shifts
        for left, right in zip(logs, logs[shift:], strict=False)
    ]
    within, total = _scale(inside), _scale(across)
    return within, math.sqrt(max(0.0, total**2 - within**2))


def _scale(differences: Sequence[Array]) -> float:
    """Deviation of what was subtracted from its like."""
    distances = np.abs(np.concatenate([*differences, np.zeros(0)]))
    return _MAD * float(np.median(distances)) / math.sqrt(2) if len(distances) else 0.0


def _persistence(groups: Sequence[Group], medians: Array, between: float) -> float | None:
    """Correlation of a prompt's part between consecutive epochs; None: no prompt came twice."""
    by_prompt: dict[str, list[tuple[int, float]]] = {}
    for group, median in zip(groups, medians, strict=True):
        by_prompt.setdefault(group.prompt, []).append((group.step, float(median)))
    pairs = []
    for seen in by_prompt.values():
        seen.sort()
        pairs += [(a[1], b[1]) for a, b in pairwise(seen)]
    if len(pairs) < 3 or between == 0:
        return None
    first, second = np.array(pairs).T
    together = float(((first - first.mean()) * (second - second.mean())).mean())
    return min(max(together / between**2, 0.0), 1.0)


def _tail(away: Array, cut: NDArray[np.bool_], deviation: float) -> tuple[float, float]:
    """Share and index of the tail, from logarithms relative to their median."""
    beyond = away > BEYOND * deviation
    number, total = int(beyond.sum()), len(away)
    if deviation == 0 or number < MIN_TAIL or number < 1.5 * BEYOND_NORMAL * total:
        return 0.0, 1.0
    excess = float((away[beyond] - BEYOND * deviation).sum())
    index = max(1, number - int(cut[beyond].sum())) / max(excess, 1e-9)
    if index * deviation > 2:
        return 0.0, 1.0  # the body itself falls off like 3 / deviation there
    reached = _reaches(index, deviation)
    share = (number / total - BEYOND_NORMAL) / (reached - BEYOND_NORMAL)
    return min(max(share, 0.0), 0.5), index


def _reaches(index: float, deviation: float) -> float:
    """P(body · factor is beyond), for a lognormal body and a Pareto factor: with the gap g between
    body and threshold normal (BEYOND · deviation, deviation²), E[min(1, exp(-index g))]."""
    moved = BEYOND - index * deviation
    exponent = -BEYOND * index * deviation + (index * deviation) ** 2 / 2
    return _normal_cdf(-BEYOND) + math.exp(exponent) * _normal_cdf(moved)


def _normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2
