"""Seconds of generation: decode iterations, prefill, log-probs.

Decoding is a sum over kernels (``simulator.roofline.operators``): the matrix products depend on how
many rows are decoded together, attention on the sum of the rows' contexts (so a batch of unequal
rows is priced as what it is, not as its mean), and both add up because kernels run one after the
other. Attention of new tokens moves far more bytes than it computes, so its seconds are linear in
the context, and a run of iterations in which no row ends has a closed form.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.hardware import Accelerator, Catalog
from simulator.model_shape import ModelShape
from simulator.roofline.blocks import make_blocks
from simulator.roofline.operators import Array, Fabric, X, operator

PREFILL_CHUNK = 8192
"""Prompt tokens run together, as vLLM's default ``max_num_batched_tokens`` on large devices."""


class InferenceCost:
    """A model on one instance: ``tensor_parallel`` accelerators of a kind.

    ``engine``: add what an engine does around the kernels (norms, scheduler, sampler); without it,
    times are those of matrix products, attention and all-reduces alone, as kernel benchmarks give.
    Raises ``UserError`` for a tensor-parallel degree or data type that cannot work.
    """

    def __init__(
        self,
        shape: ModelShape,
        accelerator: Accelerator,
        fabric: Fabric,
        tensor_parallel: int = 1,
        engine: bool = True,
    ) -> None:
        self.shape = shape
        self.tensor_parallel = tensor_parallel
        self._blocks = make_blocks(shape, accelerator, tensor_parallel, fabric)
        self._prefill = operator(accelerator, accelerator.prefill_attention, shape.dtype)
        decode = operator(accelerator, accelerator.decode_attention, shape.dtype)
        kv_heads = max(1, shape.kv_heads // tensor_parallel)
        self._kv_bytes = 2 * kv_heads * shape.head_dim * shape.dtype_bytes
        q_bytes = 2 * shape.heads // tensor_parallel * shape.head_dim * shape.dtype_bytes
        self._pair_flops = 4 * shape.heads // tensor_parallel * shape.head_dim
        self.context_s = shape.layers * self._kv_bytes / decode.bytes_per_s
        """Seconds of an iteration for every token some row attends to."""
        self._row_s = shape.layers * q_bytes / decode.bytes_per_s
        self._fixed_s = shape.layers * decode.launch_s
        self._layer_s = accelerator.layer_us * 1e-6 if engine else 0.0
        self._iteration_s = accelerator.iteration_us * 1e-6 if engine else 0.0
        self._dense = np.zeros(0)

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

    def prefill_s(
        self, tokens: Array | float, cached: Array | float = 0.0, chunk: int = PREFILL_CHUNK
    ) -> float:
        """Seconds to run prompts of ``tokens`` new tokens each, the first ``cached`` of whose
        contexts are there already, ``chunk`` tokens together.

        Attention of new token i of a prompt is to ``cached + i`` tokens.
        """
        new = np.atleast_1d(np.asarray(tokens, dtype=np.float64))
        total = float(new.sum())
        if total == 0:
            return 0.0
        pairs = float((new * cached + new * (new + 1) / 2).sum())
        full, rest = divmod(total, chunk)
        seconds = full * self.chunk_s(float(chunk), 0.0) + (self.chunk_s(rest, 0.0) if rest else 0)
        return seconds + self._pairs_s(pairs) + self._blocks.head_s(float(len(new)))

    def chunk_s(self, tokens: X, pairs: X, rows: int = 0, context_tokens: float = 0.0) -> X:
        """One iteration that runs a chunk of ``tokens`` prompt tokens with ``pairs`` (token,
        attended token) beside ``rows`` decoded sequences (chunked prefill)."""
        shape = self.shape
        body = shape.layers * (self._blocks.block_s(tokens + rows) + self._layer_s)
        seconds = body + self._pairs_s(pairs) + (shape.layers * self._prefill.launch_s)
        seconds = seconds + self._iteration_s
        if rows:
            decoded = self._row_s * rows + self._fixed_s + self._blocks.head_s(float(rows))
            seconds = seconds + decoded + context_tokens * self.context_s
        return seconds

    def logprobs_s(self, lengths: Array, microbatch_tokens: int = PREFILL_CHUNK) -> float:
        """Seconds of a forward pass over whole sequences, with log-probs of every position.

        ``lengths``: ``[sequences]`` tokens each; padding is the caller's to add.
        """
        total = float(np.sum(lengths))
        head = -(-total // microbatch_tokens) * self._blocks.head_s(float(microbatch_tokens))
        if total < microbatch_tokens:
            head = self._blocks.head_s(total)
        without = self._blocks.head_s(float(np.size(lengths)))
        return self.prefill_s(lengths, chunk=microbatch_tokens) - without + head

    def _pairs_s(self, pairs: X) -> X:
        flops = pairs * (self._pair_flops * self.shape.layers)
        return flops / self._prefill.flops_per_s

    def _dense_s(self, rows: X) -> X:
        """All of an iteration but attention to the context."""
        body = self.shape.layers * (self._blocks.block_s(rows) + self._layer_s)
        around = self._blocks.head_s(rows) + (self._fixed_s + self._iteration_s)
        return body + rows * self._row_s + around

    def _table(self, rows: int) -> Array:
        """``_dense_s`` by rows, made once and grown by doubling."""
        if rows >= len(self._dense):
            count = max(256, 1 << rows.bit_length())
            self._dense = self._dense_s(np.arange(count, dtype=np.float64))
            self._dense[0] = 0.0
        return self._dense


def fabric_of(catalog: Catalog, accelerator: Accelerator, per_node: int = 8) -> Fabric:
    """The accelerator's usual links."""
    return Fabric(catalog.link(accelerator.link), catalog.link(accelerator.network), per_node)
