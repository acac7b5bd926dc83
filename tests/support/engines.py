"""Engine costs that are easy to calculate with."""

from __future__ import annotations

import numpy as np

from simulator.roofline import PREFILL_CHUNK, EngineCost
from simulator.roofline.operators import Array, X


class PlainEngine(EngineCost):
    """An iteration takes ``iteration_s + row_s * rows + context_s * attended tokens``, a prompt
    token ``token_s`` beside it."""

    def __init__(
        self,
        iteration_s: float = 0.01,
        row_s: float = 0.0,
        context_s: float = 0.0,
        token_s: float = 0.0,
    ) -> None:
        super().__init__(context_s)
        self.iteration_s, self.row_s, self.token_s = iteration_s, row_s, token_s

    def _dense_s(self, rows: Array) -> Array:
        return self.iteration_s + self.row_s * rows

    def prefill_s(
        self, tokens: Array | float, cached: Array | float = 0.0, chunk: int = PREFILL_CHUNK
    ) -> float:
        return self.token_s * float(np.sum(tokens))

    def chunk_s(self, tokens: X, pairs: X, rows: int = 0, context_tokens: float = 0.0) -> X:
        decoded = self.decode_s(rows, context_tokens) if rows else 0.0
        return tokens * self.token_s + (self.iteration_s + decoded)

    def logprobs_s(self, lengths: Array, microbatch_tokens: int = PREFILL_CHUNK) -> float:
        return self.token_s * float(np.sum(lengths))
