"""How many draft tokens each row of a batch gets.

An engine that verifies n tokens in one iteration takes about as long as ``free + n`` tokens' worth
of arithmetic: up to ``free`` of them hide behind reading the weights. A row's j-th draft token is
accepted if those before it were, with probability a^j. Drafts are given where they add most, as
long as they raise accepted tokens over time (RLHFSpec, arXiv 2512.04752): few or none in a full
batch, many in the tail.

Worked number: one row, a = 0.7, free = 31: an iteration costs 32 without drafts. Four drafts yield
1 + 0.7 + 0.49 + 0.343 + 0.24 = 2.77 tokens at a cost of 36, so 2.46 times as many a second. With
256 such rows the fourth draft of each would add 0.24 tokens at a cost of 1 where 0.89 are had for
it anyway, and none is given.

The acceptance is measured, by how long a match the drafts were taken from, and by row: it falls as
a response goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaling.regression import fit

MATCH_LENGTHS = (8, 16, 32, 64)
"""A draft's class: how many of these lengths the match that it follows has reached."""
PRIOR_RATES = (0.3, 0.4, 0.5, 0.6, 0.7)
"""Acceptance of a class of which nothing is known."""
PRIOR_TRIALS = 8.0
"""Draft tokens that the prior counts for, and that a class counts for beside a row's own."""
KEPT = 0.98
"""Share of what was counted that is kept with each iteration, so that classes that get no drafts
drift back to the prior and are tried again."""
MOST_FREE = 4096.0
"""More tokens than these are free in no iteration."""
MOST_ACCEPTANCE = 0.98

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def expected_tokens(acceptance: float, drafted: int) -> float:
    """Tokens of a row in an iteration with ``drafted`` draft tokens (Leviathan et al., arXiv
    2211.17192)."""
    if acceptance >= 1:
        return drafted + 1.0
    return float((1 - acceptance ** (drafted + 1)) / (1 - acceptance))


def best_length(iteration_s: Callable[[int], float], acceptance: float, most: int) -> int:
    """Draft tokens, the same number for every row, with the least time a token. ``iteration_s``:
    seconds of an iteration by that number."""
    return min(range(most + 1), key=lambda k: iteration_s(k) / expected_tokens(acceptance, k))


def allot(acceptance: Floats, available: Integers, most: int, free: float) -> Integers:
    """Draft tokens of each row, ``[B]``, at most ``most`` and what is ``available``.

    ``acceptance [B]``: of each row's drafts. The choice has the most expected tokens over
    ``free + tokens verified`` of all choices.
    """
    rows = len(acceptance)
    counts = np.minimum(np.maximum(available, 0), most)
    if rows == 0 or not counts.any():
        return np.zeros(rows, np.int64)
    nth = np.arange(1, most + 1)
    # What a row's j-th draft adds [B, K]: it falls with j, so the best few are each row's first.
    gains = np.where(nth <= counts[:, None], acceptance[:, None] ** nth, -1.0)
    order = np.argsort(-gains, axis=None, kind="stable")[: int(counts.sum())]
    yields = rows + np.concatenate(([0.0], np.cumsum(gains.ravel()[order])))
    costs = free + rows + np.arange(len(yields))
    chosen = int(np.argmax(yields / costs))
    return np.bincount(order[:chosen] // most, minlength=rows).astype(np.int64)


def match_class(matched: Integers) -> Integers:
    """Class of drafts that follow matches of these lengths."""
    return np.searchsorted(np.array(MATCH_LENGTHS), matched, side="right").astype(np.int64)


@dataclass(frozen=True)
class Acceptance:
    """Draft tokens that were decided on and those accepted, by class; older ones count less. What
    follows the first refusal in a draft was not decided on."""

    tried: tuple[float, ...] = (0.0,) * len(PRIOR_RATES)
    accepted: tuple[float, ...] = (0.0,) * len(PRIOR_RATES)

    def seen(self, classes: Integers, tried: Integers, accepted: Integers) -> Acceptance:
        """With an iteration's drafts, each of a class."""
        size = len(PRIOR_RATES)
        new_tried = np.bincount(classes, weights=tried, minlength=size)
        new_accepted = np.bincount(classes, weights=accepted, minlength=size)
        return Acceptance(
            tuple(KEPT * np.array(self.tried) + new_tried),
            tuple(KEPT * np.array(self.accepted) + new_accepted),
        )

    def rates(self) -> Floats:
        """Probability of acceptance, by class."""
        prior = PRIOR_TRIALS * np.array(PRIOR_RATES)
        return (np.array(self.accepted) + prior) / (np.array(self.tried) + PRIOR_TRIALS)


def of_rows(class_rates: Floats, tried: Floats, accepted: Floats) -> Floats:
    """Acceptance of rows ``[B]``, from that of their drafts' classes and what their own were."""
    rates = (PRIOR_TRIALS * class_rates + accepted) / (PRIOR_TRIALS + tried)
    return np.minimum(rates, MOST_ACCEPTANCE)


def free_tokens(measured: Sequence[tuple[int, float]], prior: float) -> float:
    """Tokens that an iteration verifies for nothing, from iterations' tokens and seconds; the
    prior where they do not tell."""
    seconds = [s for _, s in measured]
    base_s, token_s = fit([(1.0, float(tokens)) for tokens, _ in measured], seconds, (prior, 1.0))
    return min(MOST_FREE, base_s / token_s) if token_s > 0 else MOST_FREE
