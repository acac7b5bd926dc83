"""Predicted response lengths: what is known of a prompt's past, and of all prompts'.

A prompt that was seen keeps an exponentially weighted mean of its responses' lengths (RLHFless,
section on length prediction); one never seen is taken for average. How far responses scatter about
their prediction is kept as a sample of recent ratios, so that a tail can be predicted as well as a
mean. Pure: state in, state out; all lengths in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

ALPHA = 0.5
"""Weight of the newest step: a policy under training changes its lengths within a few epochs."""
KEEP_RATIOS = 512


class LengthState(msgspec.Struct, frozen=True):
    """``means``: prompt key -> EWMA of its mean length. ``overall``: EWMA over all prompts, None
    before the first step. ``ratios``: recent actual / predicted lengths, oldest first."""

    means: dict[str, float] = {}
    overall: float | None = None
    ratios: list[float] = []


def predict(state: LengthState, prompt: str, max_tokens: int) -> float:
    """Expected length of one response to ``prompt``; half the limit when nothing is known."""
    known = state.means.get(prompt, state.overall)
    return min(float(max_tokens), max_tokens / 2 if known is None else known)


def tail_factor(state: LengthState, num_samples: int) -> float:
    """How much longer than predicted the longest of ``num_samples`` responses is likely to be.

    The ``m / (m + 1)`` quantile of the recent ratios; 2 when nothing is known.
    """
    if not state.ratios:
        return 2.0
    ordered = sorted(state.ratios)
    rank = math.ceil(len(ordered) * num_samples / (num_samples + 1))
    return ordered[min(rank, len(ordered)) - 1]


def update(
    state: LengthState, lengths: Mapping[str, Sequence[int]], max_tokens: int
) -> LengthState:
    """Learn from a step: prompt key -> lengths of its responses (each at least one)."""
    means = dict(state.means)
    ratios = list(state.ratios)
    total = count = 0
    for prompt, observed in lengths.items():
        predicted = max(1.0, predict(state, prompt, max_tokens))
        ratios += [length / predicted for length in observed]
        mean = sum(observed) / len(observed)
        old = means.get(prompt)
        means[prompt] = mean if old is None else ALPHA * mean + (1 - ALPHA) * old
        total += sum(observed)
        count += len(observed)
    if not count:
        return state
    mean = total / count
    overall = mean if state.overall is None else ALPHA * mean + (1 - ALPHA) * state.overall
    return LengthState(means=means, overall=overall, ratios=ratios[-KEEP_RATIOS:])
