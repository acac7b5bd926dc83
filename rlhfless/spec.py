"""The job spec: one model for YAML, REST and Python.

Unknown fields are errors. Paths are relative to the job file (``rlhfless.spec_file`` resolves
them). Every field does something; ``docs/job-spec.md`` is generated from this file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rlhfless.messages import FunctionName

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
GROUP_WISE = ("grpo", "dr_grpo", "rloo")
"""Algorithms whose advantages compare the responses to one prompt and no others."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelSpec(Section):
    """The policy and its initial weights."""

    path: str
    """A folder with a Hugging Face model and tokenizer, or a name on the Hub."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision in which functions hold the weights."""
    chat_template: str | None = None
    """A Jinja chat template that replaces the tokenizer's own."""


class DatasetSpec(Section):
    """Prompts, and the columns that go with them to the rewards."""

    path: str
    """A JSONL or Parquet file, or a folder written by ``datasets.save_to_disk``."""
    format: Literal["auto", "jsonl", "parquet", "hf"] = "auto"
    """``auto`` goes by the file name; a folder is ``hf``."""
    split: str = "train"
    """Split of a Hugging Face ``DatasetDict``."""
    columns: dict[str, str] = {}
    """Renames: name the rewards expect -> column of the data, e.g. ``{prompt: question}``."""
    system_prompt: str | None = None
    """Put before every prompt as a system message; makes string prompts chat prompts."""
    chat: bool | None = None
    """Render string prompts as one user message. Default: only if ``system_prompt`` is set."""
    shuffle: bool = True
    """Shuffle each epoch, by the job's seed."""
    limit: Positive | None = None
    """Use the first so many rows only."""
    overlong: Literal["error", "drop", "truncate_left"] = "error"
    """What to do with a prompt that leaves no room for ``rollout.max_tokens`` in the context."""


class EvaluationSpec(Section):
    """A held-out set, sampled before the first and after the last step, and in between."""

    dataset: DatasetSpec
    every: NonNegative = 0
    """Evaluate every so many steps as well; 0: only before and after."""
    samples_per_prompt: Positive = 1
    temperature: float | None = Field(default=None, ge=0)
    """Default: the rollout's temperature; 0 is greedy."""
    threshold: float = 1.0
    """A response counts as right when its total reward reaches this."""


class KlSpec(Section):
    """Penalty that keeps the policy near the reference (the initial model)."""

    coefficient: float = Field(default=0.0, ge=0)
    """0: no reference model is run at all."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Form of the loss term. In the reward it is always k1: only it has the right gradient."""
    placement: Literal["loss", "reward"] = "loss"


class AlgorithmSpec(Section):
    """What is optimised. Choosing ``name`` sets the advantage; other fields refine it."""

    name: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "ppo"] = "grpo"
    group_size: Positive = 8
    """Responses sampled for each prompt."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    clip_high: float = Field(default=0.2, ge=0)
    """Upper clip of the ratio; above ``clip_low`` it is DAPO's clip-higher."""
    dual_clip: float | None = Field(default=None, gt=1)
    loss_aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] | None = None
    """Default: ``sequence_sum`` for dr_grpo, else ``token_mean`` over the whole minibatch."""
    kl: KlSpec = KlSpec()
    entropy_coefficient: float = 0.0
    gamma: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    value_coefficient: float = Field(default=0.5, gt=0)
    value_clip: float | None = Field(default=0.2, gt=0)
    value_learning_rate: float | None = Field(default=None, gt=0)
    """PPO's value model; default: ``training.learning_rate``."""
    value_warmup_steps: NonNegative = 0
    """PPO: so many first steps train the value model alone."""

    @model_validator(mode="after")
    def _groups(self) -> Self:
        if self.name in GROUP_WISE and self.group_size < 2:
            raise ValueError(
                f"{self.name} compares responses of one prompt: group_size must be >= 2"
            )
        if self.name != "ppo" and self.gamma != 1.0:
            raise ValueError("gamma below 1 needs per-token advantages: use ppo")
        return self


class RewardSpec(Section):
    """One reward; exactly one of ``python``, ``model``, ``http``."""

    name: str | None = None
    """Default: the Python function's name, the model's folder name, or the URL's host."""
    python: str | None = None
    """``file.py:function`` or ``package.module:function``, with TRL's signature
    ``f(prompts, completions, **columns) -> list[float | None]``; sync or async."""
    model: str | None = None
    """A sequence-classification model (folder or Hub name); its first logit is the reward."""
    http: str | None = None
    """A URL that takes ``{prompts, completions, columns}`` and answers ``{rewards: [...]}``."""
    weight: float = 1.0
    timeout_s: float = Field(default=30.0, gt=0)
    """A call that takes longer fails, naming the function and the sample."""
    memory_mb: Positive | None = None
    """Address-space limit of the worker that runs a Python reward."""
    network: bool = False
    """Let a Python reward reach the network."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(v is not None for v in (self.python, self.model, self.http)) != 1:
            raise ValueError("give exactly one of python, model, http")
        if self.python is not None and ":" not in self.python:
            raise ValueError("python must read file.py:function or module:function")
        return self


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
    """Price of one held instance; None: unknown, and so is the job's cost."""


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


Assignment = Literal["random", "balanced", "sorted", "group_affine", "auto"]

_STATIC: dict[str, Any] = {
    "dedup_prefill": False,
    "prefix_cache": False,
    "predict_lengths": False,
    "scale_actors": False,
    "assignment": "random",
    "early_release": False,
    "migrate": False,
    "stream_scoring": False,
}
_RLHFLESS: dict[str, Any] = dict.fromkeys(_STATIC, True) | {"assignment": "auto"}


class SchedulingSpec(Section):
    """How a rollout is planned and watched over: each technique has a switch.

    ``static`` has them all off, as a serverful framework would run the job; ``rlhfless`` has them
    all on; with ``custom`` they are what you set, on where you do not.
    """

    strategy: Literal["rlhfless", "static", "custom"] = "rlhfless"
    dedup_prefill: bool = True
    """Prefill a prompt once for its whole group; off: once for every sample."""
    prefix_cache: bool = True
    """Share keys and values of prompts between instances where loading beats computing; needs
    ``dedup_prefill``."""
    predict_lengths: bool = True
    """Plan with predicted response lengths; off: every response may be as long as any other."""
    scale_actors: bool = True
    """Choose the number of actors by ``objective``; off: as many as ``rollout.max_instances``."""
    assignment: Assignment = "auto"
    """Who generates what. ``random``: equal shares; ``balanced``: equal predicted work;
    ``sorted``: similar lengths together; ``group_affine``: a prompt's samples together; ``auto``:
    whichever of the last three the cost model likes best."""
    early_release: bool = True
    """Let an instance go when nothing is left for it and keeping it would cost more; off: hold
    every instance, ``idle_timeout_s`` or not."""
    migrate: bool = True
    """Move samples between actors while they stream, when the cost model says it pays."""
    stream_scoring: bool = True
    """Score samples as they finish; off: after the last."""
    block_tokens: Positive = 16
    """Shared prefixes are cut at multiples of so many tokens."""
    kv_store_mb: Positive = 4096
    """Bound on the stored keys and values of a job."""

    @model_validator(mode="before")
    @classmethod
    def _switches(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        strategy = given.get("strategy", "rlhfless")
        fixed = {"static": _STATIC, "rlhfless": _RLHFLESS}.get(strategy, {})
        for name, value in fixed.items():
            if given.get(name, value) != value:
                raise ValueError(
                    f"{name} is {value} under strategy {strategy}; to set it, use strategy: custom"
                )
        return given | fixed


class ObjectiveSpec(Section):
    """What the controller minimises when it chooses the number of actors."""

    time_weight: Fraction = 0.5
    """λ: 1 = step time only, 0 = function-seconds only."""
    max_slowdown: float | None = Field(default=1.0, gt=0)
    """A plan may take so many times what static scheduling is predicted to take; null: no bound."""


class BudgetSpec(Section):
    """Limits, checked after every step."""

    max_function_seconds: float | None = Field(default=None, gt=0)
    max_usd: float | None = Field(default=None, gt=0)
    """Needs a price for every function in use."""
    on_exceed: Literal["pause", "fail"] = "pause"


class JobSpec(Section):
    """An RLHF job."""

    name: str = Field(default="job", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    seed: NonNegative = 0
    model: ModelSpec
    dataset: DatasetSpec
    evaluation: EvaluationSpec | None = None
    algorithm: AlgorithmSpec = AlgorithmSpec()
    rewards: list[RewardSpec] = Field(min_length=1)
    rollout: RolloutSpec = RolloutSpec()
    reward: FunctionSpec = FunctionSpec()
    """Resources of the reward function."""
    reference: ReferenceSpec = ReferenceSpec()
    training: TrainingSpec = TrainingSpec()
    scheduling: SchedulingSpec = SchedulingSpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    budget: BudgetSpec = BudgetSpec()
    metadata: dict[str, str] = {}
    """Labels of your own."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        samples = self.training.prompts_per_step * self.algorithm.group_size
        if samples % self.training.minibatches:
            raise ValueError(
                f"training.minibatches must divide the {samples} samples of a step "
                "(prompts_per_step x group_size)"
            )
        if self.training.overlap:
            self._check_overlap()
        names = [reward_name(r) for r in self.rewards]
        if len(set(names)) != len(names):
            raise ValueError(f"rewards need distinct names, got {', '.join(names)}")
        if self.budget.max_usd is not None:
            for function in self.functions():
                if self.function(function).price_usd_per_hour is None:
                    raise ValueError(
                        f"budget.max_usd needs {function}.price_usd_per_hour: its price is unknown"
                    )
        return self

    def _check_overlap(self) -> None:
        """Refuse an overlap in which nothing would be computed (``docs/algorithms.md``)."""
        if not self.scheduling.stream_scoring:
            raise ValueError(
                "training.overlap needs scheduling.stream_scoring: "
                "without it nothing is scored before the rollout ends"
            )
        if self.training.idle_timeout_s == 0:
            raise ValueError(
                "training.overlap needs training.idle_timeout_s above 0: an instance that stops "
                "after each call loses what it has computed"
            )
        dropout = self.training.trainable == "lora" and self.training.lora.dropout > 0
        whole = self.algorithm.name == "reinforce_pp" or (dropout and self.algorithm.name != "ppo")
        kl = self.algorithm.kl
        in_reward = kl.coefficient > 0 and kl.placement == "reward"
        if whole and self.training.minibatches == 1 and not in_reward:
            why = "random dropout" if dropout else "advantages over the whole batch"
            raise ValueError(
                f"training.overlap: with {why} and one minibatch nothing can be computed before "
                "the batch is complete"
            )

    def needs_reference(self) -> bool:
        return self.algorithm.kl.coefficient > 0

    def functions(self) -> tuple[FunctionName, ...]:
        """The functions this job uses."""
        if self.needs_reference():
            return ("rollout", "reward", "reference", "training")
        return ("rollout", "reward", "training")

    def function(self, name: FunctionName) -> FunctionSpec:
        section: Any = getattr(self, name)
        assert isinstance(section, FunctionSpec)
        return section


def reward_name(reward: RewardSpec) -> str:
    """The name under which a reward's mean is reported."""
    if reward.name is not None:
        return reward.name
    if reward.python is not None:
        return reward.python.rsplit(":", 1)[1]
    if reward.model is not None:
        return reward.model.rstrip("/").rsplit("/", 1)[-1]
    assert reward.http is not None
    return reward.http.split("//", 1)[-1].split("/", 1)[0]
