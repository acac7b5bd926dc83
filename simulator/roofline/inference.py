"""Seconds of generation: decode iterations, prefill, log-probs.

Decoding is a sum over kernels (``simulator.roofline.operators``): the matrix products depend on how
many rows are decoded together, attention on the sum of the rows' contexts, and both add up because
kernels run one after the other. Attention of new tokens moves far more bytes than it computes, so
its seconds are linear in the context.
"""

from __future__ import annotations

import numpy as np

from simulator.hardware import Accelerator, Catalog
from simulator.model_shape import ModelShape
from simulator.roofline.blocks import make_blocks
from simulator.roofline.engine import PREFILL_CHUNK, EngineCost
from simulator.roofline.operators import Array, Fabric, X, operator


class InferenceCost(EngineCost):
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
        super().__init__(context_s=shape.layers * self._kv_bytes / decode.bytes_per_s)
        self._row_s = shape.layers * q_bytes / decode.bytes_per_s
        self._fixed_s = shape.layers * decode.launch_s
        self._layer_s = accelerator.layer_us * 1e-6 if engine else 0.0
        self._iteration_s = accelerator.iteration_us * 1e-6 if engine else 0.0

    def prefill_s(
        self, tokens: Array | float, cached: Array | float = 0.0, chunk: int = PREFILL_CHUNK
    ) -> float:
        """See ``EngineCost``. Attention of new token i of a prompt is to ``cached + i`` tokens."""
        new = np.atleast_1d(np.asarray(tokens, dtype=np.float64))
        total = float(new.sum())
        if total == 0:
            return 0.0
        pairs = float((new * cached + new * (new + 1) / 2).sum())
        full, rest = divmod(total, chunk)
        seconds = full * self.chunk_s(float(chunk), 0.0) + (self.chunk_s(rest, 0.0) if rest else 0)
        return seconds + self._pairs_s(pairs) + self._blocks.head_s(float(len(new)))

    def chunk_s(self, tokens: X, pairs: X, rows: int = 0, context_tokens: float = 0.0) -> X:
        shape = self.shape
        body = shape.layers * (self._blocks.block_s(tokens + rows) + self._layer_s)
        seconds = body + self._pairs_s(pairs) + (shape.layers * self._prefill.launch_s)
        seconds = seconds + self._iteration_s
        if rows:
            decoded = self._row_s * rows + self._fixed_s + self._blocks.head_s(float(rows))
            seconds = seconds + decoded + context_tokens * self.context_s
        return seconds

    def logprobs_s(self, lengths: Array, microbatch_tokens: int = PREFILL_CHUNK) -> float:
        total = float(np.sum(lengths))
        head = -(-total // microbatch_tokens) * self._blocks.head_s(float(microbatch_tokens))
        if total < microbatch_tokens:
            head = self._blocks.head_s(total)
        without = self._blocks.head_s(float(np.size(lengths)))
        return self.prefill_s(lengths, chunk=microbatch_tokens) - without + head

    def _pairs_s(self, pairs: X) -> X:
        flops = pairs * (self._pair_flops * self.shape.layers)
        return flops / self._prefill.flops_per_s

    def _dense_s(self, rows: Array) -> Array:
        body = self.shape.layers * (self._blocks.block_s(rows) + self._layer_s)
        around = self._blocks.head_s(rows) + (self._fixed_s + self._iteration_s)
        return body + rows * self._row_s + around


def fabric_of(catalog: Catalog, accelerator: Accelerator, per_node: int = 8) -> Fabric:
    """The accelerator's usual links."""
    return Fabric(catalog.link(accelerator.link), catalog.link(accelerator.network), per_node)
