"""What the kinds of functions get, and how they work."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhfless.engines import EngineName
from rlhfless.spec_sections.base import NonNegative, Positive, Section


class FunctionSpec(Section):
    """What one kind of function instance gets, and how many there may be."""

    max_instances: Positive = 1
    threads: Positive = 1
    """CPU threads of an instance (torch's intra-op threads)."""
    idle_timeout_s: float = Field(default=60.0, ge=0)
    """An instance without work for so long is stopped; it starts again on demand."""
    call_timeout_s: float = Field(default=600.0, gt=0)
    """Deadline of one call; work left over is handed to another call."""
    accelerator: str = "cpu"
    """``cpu`` or ``cuda``."""
    price_usd_per_hour: float | None = Field(default=None, ge=0)
    """Price of one held instance (of each of its workers); None: unknown, and so is the job's
    cost."""


class DraftingSpec(Section):
    """Speculative decoding: tokens are guessed from the sample's own text, its siblings' and
    earlier responses, and verified together."""

    max_tokens: int = Field(default=8, gt=0, le=64)
    """Draft tokens of a sample and iteration at most; fewer or none in a full batch."""
    memory_mib: int = Field(default=128, ge=1, le=4096)
    """Memory for the text that drafts are taken from, in each of the engine's workers."""
    free_tokens: float = Field(default=0.0, ge=0)
    """Tokens that an iteration verifies in about the time of one: the larger, the more drafts in a
    full batch. 0: measured."""


class RolloutSpec(FunctionSpec):
    """Generation."""

    max_tokens: Positive = 256
    """Longest response, in tokens."""
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: NonNegative = 0
    """0: no truncation."""
    stop: list[str] = []
    """Further tokens that end a response, beside the model's end-of-sequence tokens; each must be
    a single token."""
    max_batch: NonNegative = 0
    """Samples decoded together by one instance; 0: as many as fit."""
    engine: EngineName = "auto"
    """``vllm``, ``transformers``, or ``auto``: vLLM where it is installed and ``accelerator`` is a
    GPU, transformers otherwise."""
    tensor_parallel: Positive = 1
    """GPUs of one instance that share the model; needs vLLM."""
    kv_cache_gib: float = Field(default=0.0, ge=0)
    """vLLM's memory for keys and values, on each GPU; 0: what the weights leave (on a CPU: 1)."""
    drafting: DraftingSpec | None = None
    """Speculative decoding; needs vLLM and a GPU. Default: none."""

    @model_validator(mode="after")
    def _engine(self) -> Self:
        if self.engine == "transformers" and self.tensor_parallel > 1:
            raise ValueError("tensor_parallel above 1 needs the engine vllm")
        if self.engine == "transformers" and self.drafting is not None:
            raise ValueError("drafting needs the engine vllm")
        return self


class ReferenceSpec(FunctionSpec):
    """Log-probs under the frozen initial model; only used when ``algorithm.kl.coefficient`` > 0."""

    tokens_per_microbatch: Positive = 8192


class LoraSpec(Section):
    rank: Positive = 16
    alpha: float = 32.0
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: list[str] | None = None
    """Module names; default: the projections peft knows for the architecture."""


class TrainingSpec(FunctionSpec):
    """The update."""

    steps: Positive | None = None
    """Rollout-and-train steps; default: ``epochs`` passes over the data."""
    epochs: Positive = 1
    prompts_per_step: Positive = 16
    workers: Positive = 1
    """Workers of an instance, each with an accelerator (or ``threads`` of the CPU) of its own. They
    share every update, and weights, gradients and optimizer state are sharded over them (FSDP)."""
    minibatches: Positive = 1
    """Optimizer steps in one pass over a step's samples."""
    passes: Positive = 1
    """Passes over a step's samples (PPO epochs)."""
    learning_rate: float = Field(default=1e-6, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegative = 0
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = Field(default=1e-8, gt=0)
    grad_clip: float | None = Field(default=1.0, gt=0)
    tokens_per_microbatch: Positive = 8192
    """Bound on the padded tokens of a forward pass; changes memory and speed, not the result."""
    trainable: Literal["full", "lora", "top_layers"] = "full"
    top_layers: NonNegative = 0
    """With ``trainable: top_layers``: how many of the last blocks to train."""
    lora: LoraSpec = LoraSpec()
    autocast: Literal["none", "bfloat16"] = "none"
    gradient_checkpointing: bool = False
    checkpoint_every: Positive = 10
    """Steps between saved optimizer states. After a loss the steps since are replayed."""
    overlap: bool = False
    """Begin the update with finished groups while the rollout's tail still runs; its result is the
    same up to rounding. Helps most with grpo, dr_grpo or rloo and one minibatch."""
    keep_versions: Positive = 2
    """Weight versions kept in the store beside those of checkpoints."""

    @model_validator(mode="after")
    def _layers(self) -> Self:
        if (self.trainable == "top_layers") != (self.top_layers > 0):
            raise ValueError("top_layers must be > 0 exactly when trainable is top_layers")
        return self
