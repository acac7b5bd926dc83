"""An engine's seconds from measured coefficients (``rlhfless.measurements``)."""

from __future__ import annotations

import numpy as np

from rlhfless.measurements import Measurements
from simulator.roofline import PREFILL_CHUNK, EngineCost
from simulator.roofline.operators import Array, X


class MeasuredEngine(EngineCost):
    """What was measured, as it was measured; what was not is ``otherwise``'s.

    Measured decoding is linear in rows and context; measured prefill does not tell which context
    its tokens attend to, so ``cached`` and ``pairs`` change nothing.
    """

    def __init__(self, measured: Measurements, otherwise: EngineCost) -> None:
        self._otherwise = otherwise
        self._decode = measured.rollout.decode
        self._prefill = measured.rollout.prefill
        self._reference = measured.reference
        super().__init__(otherwise.context_s if self._decode is None else self._decode[2])

    def _dense_s(self, rows: Array) -> Array:
        if self._decode is None:
            return self._otherwise._dense_s(rows)
        iteration_s, row_s, _ = self._decode
        return iteration_s + row_s * rows

    def prefill_s(
        self, tokens: Array | float, cached: Array | float = 0.0, chunk: int = PREFILL_CHUNK
    ) -> float:
        if self._prefill is None:
            return self._otherwise.prefill_s(tokens, cached, chunk)
        pass_s, token_s = self._prefill
        total = float(np.sum(tokens))
        return -(-total // chunk) * pass_s + total * token_s

    def chunk_s(self, tokens: X, pairs: X, rows: int = 0, context_tokens: float = 0.0) -> X:
        """Measured engines run prompts and decode in turn, so both parts are whole."""
        if self._prefill is None and self._decode is None:
            return self._otherwise.chunk_s(tokens, pairs, rows, context_tokens)
        decode_s = self.decode_s(rows, context_tokens)
        if self._prefill is None:
            return self._otherwise.chunk_s(tokens, pairs) + decode_s
        pass_s, token_s = self._prefill
        return tokens * token_s + (pass_s + decode_s)

    def logprobs_s(self, lengths: Array, microbatch_tokens: int = PREFILL_CHUNK) -> float:
        if self._reference is None:
            return self._otherwise.logprobs_s(lengths, microbatch_tokens)
        call_s, token_s = self._reference
        return call_s + token_s * float(np.sum(lengths))
