"""Speculative decoding in a simulation: the number of draft tokens that is best for each batch.

With k drafts an iteration verifies k + 1 tokens a row and yields, where each is accepted with
probability a if those before it were, (1 - a^(k+1)) / (1 - a) of them (Leviathan et al., arXiv
2211.17192). The k with the least time a token changes as the batch shrinks: none while the batch
is compute-bound, many in the tail (RLHFSpec, arXiv 2512.04752). Drafts cost nothing here: they come
from n-grams and from earlier responses.

Worked number: a = 0.7, k = 3: 2.53 tokens an iteration; at twice the time an iteration 1.27 times
as fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaling.drafting import best_length, expected_tokens
from simulator.roofline import PREFILL_CHUNK, EngineCost
from simulator.roofline.operators import Array, X


@dataclass(frozen=True)
class Drafting:
    """At most ``tokens`` drafts for a row and iteration, each accepted with probability
    ``acceptance`` if those before it were."""

    tokens: int
    acceptance: float

    def yields(self, drafted: int) -> float:
        """Expected tokens of a row in an iteration."""
        return expected_tokens(self.acceptance, drafted)


class DraftedEngine(EngineCost):
    """``engine`` with drafting. What it calls an iteration is a token for each row."""

    def __init__(self, engine: EngineCost, drafting: Drafting) -> None:
        super().__init__(engine.context_s)
        self._engine = engine
        self._drafting = drafting

    def best(self, rows: int, context_tokens: float) -> tuple[int, float]:
        """Draft tokens for a batch, and the tokens an iteration then yields for each row."""
        found = best_length(
            lambda k: self._engine.decode_s(rows, context_tokens, k),
            self._drafting.acceptance,
            self._drafting.tokens,
        )
        return found, self._drafting.yields(found)

    def decode_s(self, rows: int, context_tokens: float, drafted: int = 0) -> float:  # noqa: ARG002
        """A token for each row: a part of an iteration."""
        if rows == 0:
            return 0.0
        number, tokens = self.best(rows, context_tokens)
        return self._engine.decode_s(rows, context_tokens, number) / tokens

    def stretch_s(self, rows: int, context_tokens: float, iterations: int) -> float:
        number, tokens = self.best(rows, context_tokens)
        dense_s = self._engine.decode_s(rows, 0.0, number)
        attended = iterations * (context_tokens + rows * (iterations - 1) / 2)
        return (iterations * dense_s + attended * self.context_s) / tokens

    def iterations_in(self, rows: int, context_tokens: float, seconds: float) -> int:
        if rows == 0:
            return 0
        number, tokens = self.best(rows, context_tokens)
        a = rows * self.context_s / tokens / 2
        b = self._engine.decode_s(rows, context_tokens, number) / tokens - a
        root = math.sqrt(b * b + 4 * a * max(0.0, seconds))
        return int(2 * max(0.0, seconds) / (b + root) + 1e-9)

    def prefill_s(
        self, tokens: Array | float, cached: Array | float = 0.0, chunk: int = PREFILL_CHUNK
    ) -> float:
        return self._engine.prefill_s(tokens, cached, chunk)

    def chunk_s(self, tokens: X, pairs: X, rows: int = 0, context_tokens: float = 0.0) -> X:
        return self._engine.chunk_s(tokens, pairs, rows, context_tokens)

    def logprobs_s(self, lengths: Array, microbatch_tokens: int = PREFILL_CHUNK) -> float:
        return self._engine.logprobs_s(lengths, microbatch_tokens)

    def _dense_s(self, rows: Array) -> Array:
        return self._engine._dense_s(rows)
