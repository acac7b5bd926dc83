"""What any cost of an engine gives: seconds of decoding, prefill and log-probs.

An iteration of decoding is a part that depends on how many rows are decoded together, and one that
is linear in the tokens they attend to. From these two everything else about decoding follows: a
batch of unequal rows is priced as what it is, not as its mean, and a run of iterations in which no
row ends has a closed form.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from simulator.roofline.operators import Array, X

PREFILL_CHUNK = 8192
"""Prompt tokens run together, as vLLM's default ``max_num_batched_tokens`` on large devices."""


class EngineCost(ABC):
    """A model on one instance. ``context_s``: seconds of an iteration for every token some row
    attends to."""

    def __init__(self, context_s: float) -> None:
        self.context_s = context_s
        self._dense = np.zeros(0)

    @abstractmethod
    def _dense_s(self, rows: Array) -> Array:
        """All of an iteration of ``rows`` sequences but attention to the context."""

    @abstractmethod
    def prefill_s(
        self, tokens: Array | float, cached: Array | float = 0.0, chunk: int = PREFILL_CHUNK
    ) -> float:
        """Seconds to run prompts of ``tokens`` new tokens each, the first ``cached`` of whose
        contexts are there already, ``chunk`` tokens together."""

    @abstractmethod
    def chunk_s(self, tokens: X, pairs: X, rows: int = 0, context_tokens: float = 0.0) -> X:
        """One iteration that runs a chunk of ``tokens`` prompt tokens with ``pairs`` (token,
        attended token) beside ``rows`` decoded sequences (chunked prefill)."""

    @abstractmethod
    def logprobs_s(self, lengths: Array, microbatch_tokens: int = PREFILL_CHUNK) -> float:
        """Seconds of a forward pass over whole sequences, with log-probs of every position.

        ``lengths``: ``[sequences]`` tokens each; padding is the caller's to add.
        """

    def decode_s(self, rows: int, context_tokens: float, drafted: int = 0) -> float:
        """One iteration of ``rows`` sequences that attend to ``context_tokens`` in all.

        ``drafted``: draft tokens verified beside the one to come in every row; keys and values are
        read once for all of them.
        """
        if rows == 0:
            return 0.0
        dense = float(self._table(rows * (1 + drafted))[rows * (1 + drafted)])
        return dense + context_tokens * self.context_s

    def decode_run_s(self, rows: Array, context_tokens: Array, iterations: Array) -> Array:
        """Seconds of ``iterations`` of ``rows`` sequences, whose contexts are ``context_tokens`` in
        all at the first and grow by a token a row and iteration. Exact; arrays broadcast.

        Worked number: 2 rows from 10 tokens, 3 iterations: 3 dense parts and attention to
        10 + 12 + 14 = 36 tokens.
        """
        whole = np.asarray(rows, dtype=np.int64)
        dense = self._table(int(whole.max(initial=0)))[whole]
        attended = iterations * (context_tokens + rows * (iterations - 1) / 2)
        seconds: Array = iterations * dense + attended * self.context_s
        return seconds

    def stretch_s(self, rows: int, context_tokens: float, iterations: int) -> float:
        """``decode_run_s`` of one batch."""
        attended = iterations * (context_tokens + rows * (iterations - 1) / 2)
        return iterations * float(self._table(rows)[rows]) + attended * self.context_s

    def iterations_in(self, rows: int, context_tokens: float, seconds: float) -> int:
        """Whole iterations that ``rows`` sequences finish within ``seconds``: the greatest n whose
        ``decode_run_s`` is no more (to a billionth of an iteration, against rounding)."""
        if rows == 0:
            return 0
        a = rows * self.context_s / 2
        b = self.decode_s(rows, context_tokens) - a
        root = math.sqrt(b * b + 4 * a * max(0.0, seconds))
        return int(2 * max(0.0, seconds) / (b + root) + 1e-9)

    def finish_s(self, contexts: Array, remaining: Array) -> Array:
        """When each of some sequences, decoded together from now on, ends: ``[rows]`` seconds.

        ``contexts``: tokens each attends to at its next one; ``remaining``: tokens each has to go
        (at least 1). Nothing joins them; whoever ends leaves. Sorted once, then a closed form for
        every stretch between two ends, so the cost does not grow with the number of tokens.
        """
        order = np.argsort(remaining, kind="stable")
        left = np.asarray(remaining, dtype=np.float64)[order]
        at_start = np.asarray(contexts, dtype=np.float64)[order]
        rows = np.arange(len(left), 0, -1, dtype=np.float64)
        before = np.concatenate(([0.0], left[:-1]))
        context = np.cumsum(at_start[::-1])[::-1] + rows * before
        stretches = self.decode_run_s(rows, context, left - before)
        finish = np.empty(len(left))
        finish[order] = np.cumsum(stretches)
        return finish

    def _table(self, rows: int) -> Array:
        """``_dense_s`` by rows, made once and grown by doubling."""
        if rows >= len(self._dense):
            count = max(256, 1 << rows.bit_length())
            self._dense = self._dense_s(np.arange(count, dtype=np.float64))
            self._dense[0] = 0.0
        return self._dense
