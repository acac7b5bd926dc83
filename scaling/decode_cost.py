"""Time of a rollout call, learned from the calls that ran.

Model: ``decode_s = iteration_s * iterations + token_s * generated_tokens``. An iteration has a
fixed part (launches, weights read once) and a part for every sample in the batch; summed over a
call, the second is proportional to the tokens. Both are fitted by least squares over the most
recent calls with neither below zero. Worked number: 60 iterations of 1.5 ms and 2,000 tokens of
20 us are 0.09 + 0.04 = 0.13 s.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

KEEP = 64


class DecodeCall(msgspec.Struct, frozen=True):
    """What one call was measured to need."""

    iterations: int
    tokens: int
    decode_s: float


class DecodeCost(msgspec.Struct, frozen=True):
    """Seconds per iteration and per token."""

    iteration_s: float
    token_s: float

    def seconds(self, iterations: float, tokens: float) -> float:
        return self.iteration_s * iterations + self.token_s * tokens


def remember(calls: Sequence[DecodeCall], new: Sequence[DecodeCall]) -> list[DecodeCall]:
    """The calls worth fitting to: the most recent that did anything."""
    return [*calls, *(call for call in new if call.iterations > 0)][-KEEP:]


def fit(calls: Sequence[DecodeCall]) -> DecodeCost | None:
    """Least squares with both coefficients at least zero; None before the first call."""
    if not calls:
        return None
    ii = sum(c.iterations * c.iterations for c in calls)
    it = sum(c.iterations * c.tokens for c in calls)
    tt = sum(c.tokens * c.tokens for c in calls)
    iy = sum(c.iterations * c.decode_s for c in calls)
    ty = sum(c.tokens * c.decode_s for c in calls)
    determinant = ii * tt - it * it
    # Nearly proportional columns cannot tell the two parts apart.
    if determinant > 1e-6 * ii * tt:
        iteration_s = (iy * tt - ty * it) / determinant
        token_s = (ty * ii - iy * it) / determinant
        if iteration_s >= 0 and token_s >= 0:
            return DecodeCost(iteration_s=iteration_s, token_s=token_s)
    by_iterations = DecodeCost(iteration_s=iy / ii, token_s=0.0)
    by_tokens = DecodeCost(iteration_s=0.0, token_s=ty / tt if tt else 0.0)
    return min(by_iterations, by_tokens, key=lambda cost: _squared_error(cost, calls))


def _squared_error(cost: DecodeCost, calls: Sequence[DecodeCall]) -> float:
    return sum((cost.seconds(c.iterations, c.tokens) - c.decode_s) ** 2 for c in calls)
