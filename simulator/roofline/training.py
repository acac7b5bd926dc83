"""Seconds and memory of a training step under FSDP, tensor and pipeline parallelism.

A step runs its microbatches one after the other and updates once. A token costs 2 FLOPs a
parameter in the forward pass and 4 in the backward pass (of which 2 are for the weights'
gradients, only where they are trained), and recomputation a part of a forward pass; attention
costs 4 · heads · head_dim a pair of tokens forward and 2.5 times that backward (FlashAttention-2,
arXiv 2307.08691). Both run at the accelerator's measured share of its peak. FSDP's gathers and
reduce-scatters overlap with computing, so a step takes the longer of both (and the first gather);
tensor parallelism's all-reduces are in the way; a pipeline of p stages and m microbatches idles
(p - 1) / m of the computing time (Megatron-LM, arXiv 2104.04473).

Worked number: Llama-3.1-8B, 8 H100, 131,072 tokens, full recomputation: 16,384 tokens of
8 · 7.5 GFLOP each at 0.46 · 989 TFLOP/s are 2.2 s; attention adds to it, FSDP hides behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rlhfless.errors import UserError
from simulator.hardware import Accelerator
from simulator.model_shape import ModelShape
from simulator.roofline.blocks import check_tensor_parallel
from simulator.roofline.operators import Fabric, operator

Recompute = Literal["none", "selective", "full"]
RECOMPUTED: dict[Recompute, float] = {"none": 0.0, "selective": 0.5, "full": 1.0}
"""Share of a forward pass that the backward pass runs again; selective: every second product."""
UPDATE_BYTES = 30
"""Bytes of memory traffic of AdamW a parameter: fp32 gradient, weight and both moments read, the
last three written, and the bf16 weight."""


@dataclass(frozen=True)
class Layout:
    """How a training step is spread over ``data · tensor · pipeline`` accelerators."""

    data: int = 1
    """Data-parallel ranks, over which weights, gradients and optimizer are sharded (FSDP)."""
    tensor: int = 1
    pipeline: int = 1
    microbatch_tokens: int = 8192
    """Tokens of a data-parallel rank run together."""
    recompute: Recompute = "full"
    trainable: float = 1.0
    """Share of the parameters that is trained (LoRA, top layers)."""

    @property
    def accelerators(self) -> int:
        return self.data * self.tensor * self.pipeline


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step, by what they are spent on; they add up to ``total_s``."""

    compute_s: float
    tensor_parallel_s: float
    exposed_s: float
    """Gathers and reduce-scatters that computing does not hide."""
    bubble_s: float
    """Waiting of pipeline stages."""
    update_s: float

    @property
    def total_s(self) -> float:
        return (
            self.compute_s + self.tensor_parallel_s + self.exposed_s + self.bubble_s + self.update_s
        )


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on each accelerator at the peak of a step."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """Unsharded weights of the block at work and of the next."""
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + self.gathered
            + self.activations
            + self.logits
        )


class TrainingCost:
    """A model trained by a layout. Raises ``UserError`` for degrees that cannot work."""

    def __init__(
        self, shape: ModelShape, accelerator: Accelerator, fabric: Fabric, layout: Layout
    ) -> None:
        check_tensor_parallel(shape, layout.tensor)
        if shape.layers % layout.pipeline:
            raise UserError(
                f"pipeline {layout.pipeline} does not divide the {shape.layers} layers of "
                f"{shape.name}",
                param="pipeline",
            )
        self.shape, self.layout = shape, layout
        self._fabric = fabric
        self._kernels = operator(accelerator, accelerator.training, shape.dtype)
        self._local = layout.tensor * layout.pipeline
        """Among how many accelerators one copy of the model is split."""

    def step(self, tokens: float, pairs: float, updates: int = 1) -> StepTime:
        """A step over ``tokens`` in all with ``pairs`` (token, earlier token of its sequence):
        half the sum of squared lengths. ``updates``: optimizer steps, each over its share.

        A sequence is not split: with few long ones a data-parallel rank has more than its share,
        which is the caller's to say by a larger ``tokens``.
        """
        shape, layout = self.shape, self.layout
        mine = tokens / layout.data
        microbatches = updates * max(1, math.ceil(mine / updates / layout.microbatch_tokens))
        compute = self._flops(mine, pairs / layout.data) / self._local / self._kernels.flops_per_s
        reduced = mine / layout.pipeline * shape.hidden * shape.dtype_bytes * shape.layers
        passes = 2 + RECOMPUTED[layout.recompute]
        tensor_parallel = 2 * passes * self._fabric.all_reduce_s(reduced, layout.tensor)
        gathered, first = self._sharding_s(microbatches, updates)
        working = compute + tensor_parallel
        bubble = (layout.pipeline - 1) * working / microbatches
        if layout.pipeline > 1:
            sent = mine * shape.hidden * shape.dtype_bytes
            bubble += 2 * self._fabric.send_s(sent, layout.data * layout.tensor)
        trained = shape.parameters * layout.trainable / (self._local * layout.data)
        return StepTime(
            compute_s=compute,
            tensor_parallel_s=tensor_parallel,
            exposed_s=max(0.0, gathered - working) + first,
            bubble_s=bubble,
            update_s=updates * trained * UPDATE_BYTES / self._kernels.bytes_per_s,
        )

    def forward(self, tokens: float, pairs: float) -> float:
        """Seconds of a forward pass alone, for log-probs by the training ranks."""
        shape, layout = self.shape, self.layout
        flops = 2 * self._parameters_used() * tokens + self._pair_flops() * pairs
        compute = flops / layout.accelerators / self._kernels.flops_per_s
        microbatches = max(1, math.ceil(tokens / layout.data / layout.microbatch_tokens))
        local = shape.weight_bytes / self._local
        gather = microbatches * self._fabric.gather_s(local, layout.data, layout.tensor)
        return max(compute, gather) * (1 + (layout.pipeline - 1) / microbatches)

    def memory(self, microbatch_tokens: int | None = None) -> TrainingMemory:
        """Bytes a device needs; ``microbatch_tokens``: default, the layout's.

        fp32 gradients and AdamW with an fp32 copy of what is trained (16 bytes a parameter and the
        weight itself). Activations of a token: at a recomputed block its input alone; at others
        (and at the one being recomputed) inputs and outputs of every product, about
        2 · (4 hidden + 2 q + 2 kv + 3 intermediate) bytes in bf16. Logits and their gradient in
        fp32.
        """
        shape, layout = self.shape, self.layout
        tokens = microbatch_tokens or layout.microbatch_tokens
        local = shape.parameters / self._local
        shard = local / layout.data
        trained = shard * layout.trainable
        layers = shape.layers / layout.pipeline
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        inner = shape.intermediate
        if shape.experts is not None:
            inner = shape.experts.active * shape.experts.intermediate
            inner += shape.experts.shared_intermediate
        inside = (2 * q + 2 * kv + 3 * inner) / layout.tensor + 4 * shape.hidden
        kept = {"none": layers * inside, "selective": layers * inside / 2 + inside}
        widths = kept.get(layout.recompute, layers * shape.hidden + inside)
        in_flight = layout.pipeline  # microbatches of 1F1B whose backward pass is to come
        block = shape.parameters / shape.layers / layout.tensor
        return TrainingMemory(
            weights=shard * shape.dtype_bytes,
            gradients=trained * 4,
            optimizer=trained * 12,
            gathered=2 * block * shape.dtype_bytes if layout.data > 1 else 0.0,
            activations=in_flight * tokens * widths * shape.dtype_bytes,
            logits=2 * 4 * tokens * shape.vocabulary / layout.tensor,
        )

    def _flops(self, tokens: float, pairs: float) -> float:
        layout = self.layout
        again = RECOMPUTED[layout.recompute]
        each = 2 * (1 + again + 1 + layout.trainable)
        attention = self._pair_flops() * (1 + again + 2.5)
        return each * self._parameters_used() * tokens + attention * pairs

    def _parameters_used(self) -> float:
        """Parameters in a product for every token: the active ones without the embedding look-up,
        but with the head."""
        shape = self.shape
        return shape.active_parameters - (0 if shape.tied else shape.vocabulary * shape.hidden)

    def _pair_flops(self) -> float:
        return 4.0 * self.shape.heads * self.shape.head_dim * self.shape.layers

    def _sharding_s(self, microbatches: int, updates: int) -> tuple[float, float]:
        """Seconds of FSDP's collectives: those that overlap, and the first gather of an update."""
        shape, layout = self.shape, self.layout
        if layout.data == 1:
            return 0.0, 0.0
        local = shape.weight_bytes / self._local
        gather = self._fabric.gather_s(local, layout.data, layout.tensor)
        scatter = self._fabric.gather_s(local * layout.trainable, layout.data, layout.tensor)
        # With a pipeline weights stay gathered over the microbatches of an update.
        rounds = updates if layout.pipeline > 1 else microbatches
        first = updates * gather / shape.layers
        return rounds * (2 * gather + scatter), first
