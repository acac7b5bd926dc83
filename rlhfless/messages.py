"""What the controller and the functions say to each other: typed once, for both sides.

Every call is ``POST /v1/<function>`` with one msgpack request body; the answer is a stream of
frames (``rlhfless.frames``) that ends with exactly one terminal frame: the function's result, or a
``Problem``. Long calls send ``Heartbeat`` frames, so no proxy sees them silent. Structs ignore
fields they do not know, so controller and functions can be of neighbouring releases.

Shapes: token ids are plain lists; log-probs travel as little-endian float32 bytes, one per token,
in the order of the tokens they belong to.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import msgspec

FunctionName: TypeAlias = Literal["rollout", "reward", "reference", "training"]
FUNCTION_NAMES: tuple[FunctionName, ...] = ("rollout", "reward", "reference", "training")
FinishReason: TypeAlias = Literal["stop", "length"]


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every wire value."""


class Frame(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the union of frames; the tag is the class name."""


# --- what every request names ---------------------------------------------------------------


class CallInfo(Struct, frozen=True, kw_only=True):
    """Identity and limits of a call.

    ``id`` is unique to the work, not to the attempt: a repeat with the same id returns the first
    result. ``deadline_s`` counts seconds from the moment the function receives the call.
    ``store`` is the URL of the object store that versions, batches and results live in.
    """

    id: str
    job: str
    step: int
    deadline_s: float
    store: str


class ModelRef(Struct, frozen=True, kw_only=True):
    """A model at a version. Version 0 is ``path`` as it lies; later ones are pulled from the store.

    ``path`` is a folder or a Hugging Face name; ``dtype`` one of ``float32 | bfloat16 | float16``.
    """

    path: str
    job: str
    version: int
    dtype: str = "float32"


# --- rollout --------------------------------------------------------------------------------


class SamplingParams(Struct, frozen=True, kw_only=True):
    """``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 mean no truncation.

    ``stop_token_ids`` end a response and belong to it. Log-probs that come back are those of the
    distribution sampled from, after temperature and truncation.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: list[int] = []


class SampleTask(Struct, frozen=True, kw_only=True):
    """One sample to generate or to continue.

    ``prompt`` indexes the request's ``prompts``; ``tokens`` were generated before, elsewhere;
    ``max_tokens`` bounds the whole response, ``tokens`` included; ``seed`` as ``rlhfless.seeds``.
    """

    id: str
    prompt: int
    seed: int
    max_tokens: int
    tokens: list[int] = []


class RolloutRequest(Struct, frozen=True, kw_only=True):
    """``max_batch`` bounds the samples decoded together (0: the engine decides)."""

    call: CallInfo
    model: ModelRef
    sampling: SamplingParams
    prompts: list[list[int]]
    samples: list[SampleTask]
    max_batch: int = 0


class Tokens(Frame, frozen=True, kw_only=True):
    """New tokens of some samples, in columns.

    Entry i: ``counts[i]`` tokens of ``request.samples[samples[i]]`` at response positions
    ``starts[i] ..``. ``tokens`` and ``logprobs`` (float32 LE) hold the entries back to back.
    ``version`` is the policy version that produced them.
    """

    samples: list[int]
    starts: list[int]
    counts: list[int]
    tokens: list[int]
    logprobs: bytes
    version: int


class Finished(Frame, frozen=True, kw_only=True):
    """Samples (indices into the request) whose last token has been sent, and why they ended."""

    samples: list[int]
    reasons: list[FinishReason]


class Progress(Frame, frozen=True, kw_only=True):
    """Load of the engine: samples running and waiting, tokens cached, iterations so far."""

    running: int
    waiting: int
    kv_tokens: int
    iterations: int


class RolloutDone(Frame, frozen=True, kw_only=True):
    """End of a rollout stream. ``unfinished`` is not empty after a drain or a deadline.

    ``prefill_computed`` and ``prefill_saved`` count prompt tokens run through the model and prompt
    tokens that sharing made unnecessary. Times in seconds.
    """

    unfinished: list[int] = []
    generated_tokens: int = 0
    prefill_computed: int = 0
    prefill_saved: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    iterations: int = 0
    weights_pull_s: float = 0.0
    weights_bytes: int = 0


# --- reward ---------------------------------------------------------------------------------

Prompt: TypeAlias = str | list[dict[str, Any]]


class RewardFunction(Struct, frozen=True, kw_only=True):
    """One reward: ``kind`` ``python`` (``target`` = ``file.py:name`` or ``module:name``),
    ``model`` (a sequence-classification model's path) or ``http`` (a URL).

    ``timeout_s`` bounds one call, ``memory_bytes`` the Python worker's address space (0: none);
    ``network`` lets user code reach the network.
    """

    name: str
    kind: Literal["python", "model", "http"]
    target: str
    weight: float = 1.0
    timeout_s: float = 30.0
    memory_bytes: int = 0
    network: bool = False


class RewardRequest(Struct, frozen=True, kw_only=True):
    """Score finished samples. Lists run in parallel: entry i is sample ``sample_ids[i]``.

    ``prompts`` and ``completions`` are strings, or chat messages where the dataset is chat;
    ``columns`` are the dataset's further columns, repeated per sample.
    """

    call: CallInfo
    functions: list[RewardFunction]
    sample_ids: list[str]
    prompts: list[Prompt]
    completions: list[Prompt]
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]] = {}


class RewardDone(Frame, frozen=True, kw_only=True):
    """``scores[f][i]``: function f on sample i, None where it does not apply.

    ``totals[i]`` is the weighted sum over the functions that apply.
    """

    scores: list[list[float | None]]
    totals: list[float]


# --- reference ------------------------------------------------------------------------------


class LogprobsRequest(Struct, frozen=True, kw_only=True):
    """Per-token log-probs of given responses under ``model`` at ``temperature`` (no truncation).

    ``prompts[i]`` + ``responses[i]`` is sequence i. ``tokens_per_microbatch`` bounds padded tokens
    of one forward pass; it never changes the result.
    """

    call: CallInfo
    model: ModelRef
    prompts: list[list[int]]
    responses: list[list[int]]
    temperature: float = 1.0
    tokens_per_microbatch: int = 8192


class LogprobsDone(Frame, frozen=True, kw_only=True):
    """``logprobs``: float32 LE over the responses back to back, ``sum(len(responses))`` values."""

    logprobs: bytes
    weights_pull_s: float = 0.0


# --- training -------------------------------------------------------------------------------


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


class ExportRequest(Struct, frozen=True, kw_only=True):
    """Write ``model`` as a folder that ``transformers`` loads. LoRA is merged; the adapter lies in
    ``adapter/`` beside it. ``chat_template`` replaces the tokenizer's own."""

    call: CallInfo
    model: ModelRef
    folder: str
    chat_template: str | None = None


class ExportDone(Frame, frozen=True, kw_only=True):
    folder: str
    files: list[str]


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics without those that are no number: JSON has no infinity, and a reader of a step's
    record must not stumble over one."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


# --- frames any call may send ---------------------------------------------------------------


class Heartbeat(Frame, frozen=True, kw_only=True):
    """The call is alive; ``busy_s`` seconds of work so far."""

    busy_s: float = 0.0


class Drain(Frame, frozen=True, kw_only=True):
    """The instance is going away (``reason``, e.g. ``SIGTERM``); the stream ends soon."""

    reason: str


class Problem(Frame, frozen=True, kw_only=True):
    """The call failed: the members of an RFC 9457 problem document."""

    problem: dict[str, Any]


Request: TypeAlias = RolloutRequest | RewardRequest | LogprobsRequest | TrainRequest | ExportRequest
AnyFrame: TypeAlias = (
    Tokens
    | Finished
    | Progress
    | RolloutDone
    | RewardDone
    | LogprobsDone
    | TrainDone
    | ExportDone
    | Heartbeat
    | Drain
    | Problem
)
TERMINAL: tuple[type[Frame], ...] = (
    RolloutDone,
    RewardDone,
    LogprobsDone,
    TrainDone,
    ExportDone,
    Problem,
)

ROUTES: dict[type[Struct], tuple[FunctionName, str]] = {
    RolloutRequest: ("rollout", "/v1/rollout"),
    RewardRequest: ("reward", "/v1/reward"),
    LogprobsRequest: ("reference", "/v1/logprobs"),
    TrainRequest: ("training", "/v1/train"),
    ExportRequest: ("training", "/v1/export"),
}
"""Which function serves a request, and at which path."""
