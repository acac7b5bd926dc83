"""Messages of the training function."""

from __future__ import annotations

from typing import Literal

from rlhfless.wire.base import CallInfo, Frame, ModelRef, Struct


class BatchRef(Struct, frozen=True, kw_only=True):
    """A training batch in the object store (see ``rlhfless.batches``)."""

    name: str
    sha256: str
    num_samples: int


class Algorithm(Struct, frozen=True, kw_only=True):
    """Mathematics of an update. ``docs/algorithms.md`` has every formula and its source.

    ``advantage``: ``group_norm`` (GRPO), ``group_mean`` (Dr. GRPO), ``rloo``, ``batch_norm``
    (REINFORCE++ with gamma = 1) or ``gae`` (PPO; needs a value model).
    ``loss_aggregation``: ``token_mean`` over the minibatch, ``sequence_mean`` of token means, or
    ``sequence_sum`` (token sum over ``max_tokens``).
    ``kl_placement`` ``loss`` adds ``kl_coefficient * estimator`` per token to the loss;
    ``reward`` subtracts ``kl_coefficient * k1`` from the token rewards.
    """

    name: str
    advantage: Literal["group_norm", "group_mean", "rloo", "batch_norm", "gae"]
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    loss_aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    kl_coefficient: float = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_placement: Literal["loss", "reward"] = "loss"
    entropy_coefficient: float = 0.0
    gamma: float = 1.0
    gae_lambda: float = 1.0
    value_coefficient: float = 0.5
    value_clip: float | None = 0.2
    value_learning_rate: float | None = None
    value_warmup_steps: int = 0


class Optimization(Struct, frozen=True, kw_only=True):
    """How a batch becomes optimizer steps. One call makes ``passes * minibatches`` of them.

    ``learning_rate`` is the peak; ``schedule`` runs over ``total_steps`` calls after
    ``warmup_steps`` calls of linear warm-up. ``trainable``: ``full``, ``lora``, or ``top_layers``
    (the last ``top_layers`` blocks and the final norm). ``autocast`` ``bfloat16`` runs the forward
    pass in bf16 over float32 master weights.
    """

    learning_rate: float
    total_steps: int
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    minibatches: int = 1
    passes: int = 1
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    grad_clip: float | None = 1.0
    tokens_per_microbatch: int = 8192
    trainable: Literal["full", "lora", "top_layers"] = "full"
    top_layers: int = 0
    lora_rank: int = 16
    lora_alpha: float = 32.0
    lora_dropout: float = 0.0
    lora_targets: list[str] | None = None
    autocast: Literal["none", "bfloat16"] = "none"
    gradient_checkpointing: bool = False


class TrainRequest(Struct, frozen=True, kw_only=True):
    """Turn version ``model.version`` into the next one with ``batch``.

    ``temperature`` is the sampling temperature the log-probs refer to. ``checkpoint`` asks for
    optimizer state, RNG and ``data_position`` to be saved with the new version. ``seed`` decides
    the order of minibatches. Raises ``ConflictError`` if another call already made the version.
    """

    call: CallInfo
    model: ModelRef
    batch: BatchRef
    algorithm: Algorithm
    optimization: Optimization
    seed: int
    temperature: float = 1.0
    max_tokens: int = 0
    checkpoint: bool = False
    data_position: dict[str, int] = {}


class TrainDone(Frame, frozen=True, kw_only=True):
    """``version`` = parent + 1, now readable by anyone; ``metrics`` by their public names.

    ``repeated`` is true when an earlier call with the same id had already made the version.
    """

    version: int
    metrics: dict[str, float]
    repeated: bool = False
    train_s: float = 0.0
    publish_s: float = 0.0
    restore_s: float = 0.0


class GradientsRequest(Struct, frozen=True, kw_only=True):
    """Begin the update of ``model.version`` with a part of its batch, while the rest is generated.

    ``batch`` is that part, as ``rlhfless.batches.encode_batch`` makes it: whole groups, with their
    rewards and, where there is a penalty, reference log-probs. Its sample i is sample
    ``samples[i]`` of the step's batch, and ``groups`` ``[N]`` are those of the whole step. All else
    as the train call will have it.

    What is computed stays on the instance, as a cache for that call: nothing is committed, a
    repeat computes only what is missing, and losing it costs time.
    """

    call: CallInfo
    model: ModelRef
    batch: bytes
    samples: list[int]
    groups: list[int]
    algorithm: Algorithm
    optimization: Optimization
    seed: int
    temperature: float = 1.0
    max_tokens: int = 0


class GradientsDone(Frame, frozen=True, kw_only=True):
    """``num_samples`` of the step are begun on this instance, those of earlier calls included;
    0 when the version has been made already."""

    num_samples: int = 0


class ExportRequest(Struct, frozen=True, kw_only=True):
    """Write ``model`` as a folder that ``transformers`` loads. LoRA is merged; the adapter lies in
    ``adapter/`` beside it. ``chat_template`` replaces the tokenizer's own.

    With ``store_prefix`` (then ``folder`` is empty) the folder becomes a checkpoint in the object
    store, below that prefix (``rlhfless.checkpoints``), with what its manifest is to say: the
    step is the call's, ``metrics`` and ``final``. A checkpoint that is there already stays.
    """

    call: CallInfo
    model: ModelRef
    folder: str = ""
    chat_template: str | None = None
    store_prefix: str | None = None
    metrics: dict[str, float] = {}
    final: bool = False


class ExportDone(Frame, frozen=True, kw_only=True):
    """``folder`` or prefix, and what lies there, relative to it."""

    folder: str
    files: list[str]
