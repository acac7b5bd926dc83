"""Predicted response lengths: what is known of a prompt's past, and of all prompts'.

A prompt that was seen keeps an exponentially weighted mean of its responses' lengths (RLHFless,
arXiv 2602.22718, length prediction). One never seen gets the mean of all prompts, corrected by what
prompts of its own length did. How far responses scatter about their prediction is kept as samples
of recent ratios, one for prompts with a past and one for those without, so that a tail can be
predicted as well as a mean (``scaling.forecasts``). Pure: state in, state out; all lengths in
tokens. Worked number: a prompt predicted 100 whose eight responses average 140 is predicted
0.5 · 140 + 0.5 · 100 = 120 the next time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from scaling.forecasts import Forecast, quantile_blocks

ALPHA = 0.5
"""Weight of the newest step: a policy under training changes its lengths within a few epochs."""
OVERALL_ALPHA = 0.25
"""The same for the mean of all prompts: each step sees only some of them, so its mean is noisy."""
KEEP_RATIOS = 512
KEEP_PROMPTS = 32768
"""Prompts with a past; those not seen for longest are forgotten first."""
SUPPORT = 128
"""Points of a forecast's distribution."""
BUCKET_STRENGTH = 4.0
"""Prompts a bucket must have seen before its own mean counts as much as that of all."""
UNKNOWN = tuple((i + 0.5) / 10 for i in range(20))
"""Ratios before anything is known: uniform over 0 .. 2, so lengths over 0 .. the limit."""
UNKNOWN_VARIANCE = 0.5
"""Of log lengths, between and within prompts: their sum is about that of ``UNKNOWN``."""


class LengthState(msgspec.Struct, frozen=True):
    """What was learned of lengths; bounded (``KEEP_PROMPTS``, ``KEEP_RATIOS``).

    ``means``: prompt key -> EWMA of its mean length, last seen last. ``overall``: EWMA over all
    prompts, None before the first step. ``ratios``: recent actual / predicted lengths of prompts
    with a past, oldest first; ``cold_ratios`` of those without. ``buckets``: power of two of the
    prompt's length -> [mean relative to overall, prompts seen]. ``between``, ``cold_between`` (with
    and without a past) and ``scatter``: variances of log lengths, as ``scaling.forecasts``; None
    before there was anything to tell them from.
    """

    means: dict[str, float] = {}
    overall: float | None = None
    ratios: list[float] = []
    cold_ratios: list[float] = []
    buckets: dict[int, tuple[float, float]] = {}
    between: float | None = None
    cold_between: float | None = None
    scatter: float | None = None


def predict(state: LengthState, prompt: str, max_tokens: int, prompt_tokens: int = 0) -> float:
    """Expected length of one response to ``prompt``; half the limit when nothing is known."""
    known = state.means.get(prompt)
    if known is None and state.overall is not None:
        known = state.overall * _bucket_factor(state, prompt_tokens)
    return min(float(max_tokens), max_tokens / 2 if known is None else max(1.0, known))


def forecast(state: LengthState, prompt: str, prompt_tokens: int, max_tokens: int) -> Forecast:
    """The distribution of lengths of responses to ``prompt`` (of ``prompt_tokens`` tokens)."""
    return forecasts(state, {prompt: prompt_tokens}, max_tokens)[prompt]


def forecasts(
    state: LengthState, prompts: Mapping[str, int], max_tokens: int
) -> dict[str, Forecast]:
    """The same for many; ``prompts``: key -> tokens."""
    # Before any of its own kind the other kind's ratios say more than the uniform guess.
    old = np.array(quantile_blocks(state.ratios or state.cold_ratios or UNKNOWN, SUPPORT))
    new = np.array(quantile_blocks(state.cold_ratios or state.ratios or UNKNOWN, SUPPORT))
    found: dict[str, Forecast] = {}
    for prompt, prompt_tokens in prompts.items():
        known = prompt in state.means
        between = state.between if known else state.cold_between
        lengths = predict(state, prompt, max_tokens, prompt_tokens) * (old if known else new)
        found[prompt] = Forecast(
            support=tuple(lengths.clip(1.0, max_tokens).tolist()),
            max_tokens=max_tokens,
            between=UNKNOWN_VARIANCE if between is None else between,
            scatter=UNKNOWN_VARIANCE if state.scatter is None else state.scatter,
        )
    return found


def update(
    state: LengthState,
    observed: Mapping[str, Sequence[int]],
    max_tokens: int,
    prompt_tokens: Mapping[str, int] | None = None,
) -> LengthState:
    """Learn from a step: prompt key -> lengths of its responses (each at least one)."""
    observed = {prompt: lengths for prompt, lengths in observed.items() if lengths}
    if not observed:
        return state
    sizes = prompt_tokens or {}
    total = sum(map(sum, observed.values())) / sum(map(len, observed.values()))
    means = dict(state.means)
    ratios, cold_ratios = list(state.ratios), list(state.cold_ratios)
    for prompt, lengths in observed.items():
        # Before the first step nothing was predicted: its own mean stands in for that.
        predicted = predict(state, prompt, max_tokens, sizes.get(prompt, 0))
        predicted = max(1.0, total if state.overall is None else predicted)
        known = means.pop(prompt, None)
        (cold_ratios if known is None else ratios).extend(n / predicted for n in lengths)
        mean = sum(lengths) / len(lengths)
        means[prompt] = mean if known is None else ALPHA * mean + (1 - ALPHA) * known
    for prompt in list(means)[: max(0, len(means) - KEEP_PROMPTS)]:
        del means[prompt]
    scatter = _scatter(state, observed)
    errors = _errors(state, observed, max_tokens, sizes)
    return LengthState(
        means=means,
        overall=_ewma(state.overall, total, OVERALL_ALPHA),
        ratios=ratios[-KEEP_RATIOS:],
        cold_ratios=cold_ratios[-KEEP_RATIOS:],
        buckets=_buckets(state, observed, sizes, total),
        between=_between(state.between, errors[True], scatter),
        cold_between=_between(state.cold_between, errors[False], scatter),
        scatter=scatter,
    )


def _ewma(old: float | None, new: float, alpha: float = ALPHA) -> float:
    return new if old is None else alpha * new + (1 - alpha) * old


def _bucket_factor(state: LengthState, prompt_tokens: int) -> float:
    relative, seen = state.buckets.get(prompt_tokens.bit_length(), (1.0, 0.0))
    return (relative * seen + BUCKET_STRENGTH) / (seen + BUCKET_STRENGTH)


def _buckets(
    state: LengthState,
    observed: Mapping[str, Sequence[int]],
    sizes: Mapping[str, int],
    overall: float,
) -> dict[int, tuple[float, float]]:
    buckets = dict(state.buckets)
    for prompt, lengths in observed.items():
        bucket = sizes.get(prompt, 0).bit_length()
        old, seen = buckets.get(bucket, (1.0, 0.0))
        relative = sum(lengths) / len(lengths) / overall
        # A running mean that forgets: never slower than over the last 64 prompts.
        rate = 1 / min(seen + 1, 64.0)
        buckets[bucket] = (old + rate * (relative - old), min(seen + 1, 64.0))
    return buckets


def _scatter(state: LengthState, observed: Mapping[str, Sequence[int]]) -> float | None:
    """EWMA of the variance of log lengths within prompts."""
    squares = freedom = 0.0
    for lengths in observed.values():
        logs = [math.log(max(1, length)) for length in lengths]
        mean = sum(logs) / len(logs)
        squares += sum((log - mean) ** 2 for log in logs)
        freedom += len(logs) - 1
    return _ewma(state.scatter, max(0.01, squares / freedom)) if freedom else state.scatter


def _errors(
    state: LengthState,
    observed: Mapping[str, Sequence[int]],
    max_tokens: int,
    sizes: Mapping[str, int],
) -> dict[bool, list[tuple[float, int]]]:
    """Whether a prompt had a past -> (mean log length less log prediction, responses) of each."""
    errors: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
    for prompt, lengths in observed.items():
        predicted = max(1.0, predict(state, prompt, max_tokens, sizes.get(prompt, 0)))
        mean = sum(math.log(max(1, length)) for length in lengths) / len(lengths)
        errors[prompt in state.means].append((mean - math.log(predicted), len(lengths)))
    return errors


def _between(
    old: float | None, errors: Sequence[tuple[float, int]], scatter: float | None
) -> float | None:
    """EWMA of the variance of prompts' errors, less what their responses' scatter explains."""
    if len(errors) < 2:
        return old
    mean = sum(error for error, _ in errors) / len(errors)
    noise = sum((scatter or 0.0) / count for _, count in errors) / len(errors)
    spread = sum((error - mean) ** 2 for error, _ in errors) / (len(errors) - 1)
    return _ewma(old, max(0.01, spread - noise))
