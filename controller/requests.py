"""From a job to the requests its functions get: where spec fields become wire fields."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from controller.collector import FinishedSample
from controller.garbage import is_checkpoint
from controller.job import Prompt, Surroundings
from rlhfless.checkpoints import checkpoint_prefix
from rlhfless.messages import (
    Algorithm,
    BatchRef,
    CallInfo,
    ExportRequest,
    FunctionName,
    GradientsRequest,
    LogprobsRequest,
    ModelRef,
    Optimization,
    PrefillRequest,
    PrefixUse,
    RewardFunction,
    RewardRequest,
    RolloutRequest,
    SampleTask,
    SamplingParams,
    SteerRequest,
    TrainRequest,
)
from rlhfless.seeds import derive
from rlhfless.spec import JobSpec, RewardSpec, reward_name

_ADVANTAGE = {
    "grpo": "group_norm",
    "dr_grpo": "group_mean",
    "rloo": "rloo",
    "reinforce_pp": "batch_norm",
    "ppo": "gae",
}
LOOK_S = 0.25
"""Seconds between looks at a rollout whose length nobody knows; no look is more often."""


def call_info(job: Surroundings, step: int, function: FunctionName, shard: str) -> CallInfo:
    """The id names the work: job, step, function and shard; a retry keeps it."""
    return CallInfo(
        id=f"step-{step:06d}/{function}/{shard}",
        job=job.id,
        step=step,
        deadline_s=job.spec.function(function).call_timeout_s,
        store=job.objects.url,
    )


def model_ref(job: Surroundings, version: int) -> ModelRef:
    return ModelRef(
        path=job.spec.model.path, job=job.id, version=version, dtype=job.spec.model.dtype
    )


@dataclass(frozen=True)
class RolloutTask:
    """What to generate, with which version; ``name`` tells calls of one step apart. ``cuts``:
    where a prompt's stored segments end; prompts that are missing have none. ``progress_s``:
    between an engine's reports of its load; ``flush_s``: between frames of tokens, at least."""

    step: int
    version: int
    name: str = "actor"
    temperature: float | None = None
    cuts: Mapping[tuple[int, ...], list[int]] = field(default_factory=dict)
    load: bool = True
    publish: bool = False
    progress_s: float = LOOK_S
    flush_s: float = 0.0

    def cuts_of(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        return [self.cuts.get(tuple(prompt), []) for prompt in prompts]


def rollout_request(
    job: Surroundings,
    task: RolloutTask,
    prompts: list[list[int]],
    samples: list[SampleTask],
    shard: str,
) -> RolloutRequest:
    """Generate, or continue, ``samples``."""
    rollout = job.spec.rollout
    return RolloutRequest(
        call=call_info(job, task.step, "rollout", shard),
        model=model_ref(job, task.version),
        sampling=SamplingParams(
            temperature=rollout.temperature if task.temperature is None else task.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            stop_token_ids=job.data.stop_token_ids,
        ),
        prompts=prompts,
        samples=samples,
        max_batch=rollout.max_batch,
        prefix=(
            PrefixUse(cuts=task.cuts_of(prompts), load=task.load, publish=task.publish)
            if task.cuts
            else None
        ),
        progress_s=task.progress_s,
        flush_s=task.flush_s,
    )


def steer_request(
    job: Surroundings,
    task: RolloutTask,
    running: RolloutRequest,
    number: int,
    *,
    prompts: Sequence[list[int]] = (),
    samples: Sequence[SampleTask] = (),
    release: Sequence[int] = (),
) -> SteerRequest:
    """Change ``running`` for the ``number``-th time."""
    shard = f"{running.call.id.rsplit('/', 1)[1]}-steer-{number}"
    return SteerRequest(
        call=call_info(job, task.step, "rollout", shard),
        target=running.call.id,
        number=number,
        prompts=list(prompts),
        cuts=task.cuts_of(prompts) if task.cuts else [],
        samples=list(samples),
        release=list(release),
    )


def prefill_request(
    job: Surroundings,
    task: RolloutTask,
    prompts: Sequence[Sequence[int]],
    cuts: Sequence[Sequence[int]],
    shard: str,
) -> PrefillRequest:
    """Compute and store segments of ``prompts``. The id follows from them too: a controller that
    takes a step over may plan others under the name, for which the first result says nothing."""
    said = msgspec.msgpack.encode((list(prompts), list(cuts)))
    digest = hashlib.blake2b(said, digest_size=8).hexdigest()
    return PrefillRequest(
        call=call_info(job, task.step, "rollout", f"{shard}-{digest}"),
        model=model_ref(job, task.version),
        prompts=[list(prompt) for prompt in prompts],
        cuts=[list(each) for each in cuts],
    )


def reward_request(
    job: Surroundings, step: int, samples: Sequence[FinishedSample], prompts: Sequence[Prompt]
) -> RewardRequest:
    """Score ``samples``; ``prompts[i]`` is the prompt of ``samples[i]``."""
    texts = job.data.decode([sample.tokens for sample in samples])
    rows = [prompt.row for prompt in prompts]
    columns = {name: [row.columns[name] for row in rows] for name in rows[0].columns}
    return RewardRequest(
        call=call_info(job, step, "reward", _shard(samples)),
        functions=reward_functions(job.spec),
        sample_ids=[sample.id for sample in samples],
        prompts=[row.prompt for row in rows],
        completions=[
            text if isinstance(row.prompt, str) else [{"role": "assistant", "content": text}]
            for text, row in zip(texts, rows, strict=True)
        ],
        completion_ids=[sample.tokens for sample in samples],
        columns=columns,
    )


def reward_functions(spec: JobSpec) -> list[RewardFunction]:
    return [_reward_function(reward) for reward in spec.rewards]


def _reward_function(reward: RewardSpec) -> RewardFunction:
    common = {"name": reward_name(reward), "weight": reward.weight, "timeout_s": reward.timeout_s}
    if reward.python is not None:
        return RewardFunction(
            kind="python",
            target=reward.python,
            memory_bytes=(reward.memory_mb or 0) << 20,
            network=reward.network,
            **common,  # type: ignore[arg-type]
        )
    if reward.model is not None:
        return RewardFunction(kind="model", target=reward.model, **common)  # type: ignore[arg-type]
    assert reward.http is not None
    return RewardFunction(kind="http", target=reward.http, **common)  # type: ignore[arg-type]


def reference_request(
    job: Surroundings, step: int, samples: Sequence[FinishedSample], prompts: Sequence[Prompt]
) -> LogprobsRequest:
    """Log-probs of ``samples`` under the initial model."""
    # Samples of a prompt share one list of its tokens.
    tokens = {prompt.key: list(prompt.tokens) for prompt in prompts}
    return LogprobsRequest(
        call=call_info(job, step, "reference", _shard(samples)),
        model=model_ref(job, 0),
        prompts=[tokens[prompt.key] for prompt in prompts],
        responses=[sample.tokens for sample in samples],
        temperature=job.spec.rollout.temperature,
        tokens_per_microbatch=job.spec.reference.tokens_per_microbatch,
    )


def train_request(
    job: Surroundings,
    step: int,
    version: int,
    batch: BatchRef,
    position: dict[str, int],
    total_steps: int,
) -> TrainRequest:
    """Turn ``version`` into the next one with ``batch``."""
    return TrainRequest(
        call=call_info(job, step, "training", "train"),
        model=model_ref(job, version),
        batch=batch,
        algorithm=algorithm(job.spec),
        optimization=optimization(job.spec, total_steps),
        seed=_train_seed(job, step),
        temperature=job.spec.rollout.temperature,
        max_tokens=job.spec.rollout.max_tokens,
        checkpoint=is_checkpoint(step + 1, job.spec.training.checkpoint_every, total_steps),
        data_position=position,
    )


def gradients_request(
    job: Surroundings,
    step: int,
    version: int,
    part: bytes,
    samples: Sequence[int],
    groups: Sequence[int],
    total_steps: int,
) -> GradientsRequest:
    """Begin the work of ``train_request`` on a part of its batch: an encoded batch, whose samples
    are ``samples`` of the step's, whose groups are ``groups``."""
    digest = hashlib.blake2b(part, digest_size=8).hexdigest()
    return GradientsRequest(
        call=call_info(job, step, "training", f"gradients-{digest}"),
        model=model_ref(job, version),
        batch=part,
        samples=list(samples),
        groups=list(groups),
        algorithm=algorithm(job.spec),
        optimization=optimization(job.spec, total_steps),
        seed=_train_seed(job, step),
        temperature=job.spec.rollout.temperature,
        max_tokens=job.spec.rollout.max_tokens,
    )


def _train_seed(job: Surroundings, step: int) -> int:
    return derive(job.spec.seed, "train", step)


def export_request(job: Surroundings, step: int, version: int, folder: str) -> ExportRequest:
    return ExportRequest(
        call=call_info(job, step, "training", f"export-{version}"),
        model=model_ref(job, version),
        folder=folder,
        chat_template=job.spec.model.chat_template,
    )


def checkpoint_request(
    job: Surroundings, step: int, version: int, metrics: Mapping[str, float], *, final: bool
) -> ExportRequest:
    """Into the object store, after ``step`` steps, whose last had ``metrics``."""
    return ExportRequest(
        call=call_info(job, step, "training", f"checkpoint-{version}"),
        model=model_ref(job, version),
        chat_template=job.spec.model.chat_template,
        store_prefix=checkpoint_prefix(job.id, step),
        metrics=dict(metrics),
        final=final,
    )


def algorithm(spec: JobSpec) -> Algorithm:
    a = spec.algorithm
    default_aggregation = "sequence_sum" if a.name == "dr_grpo" else "token_mean"
    return Algorithm(
        name=a.name,
        advantage=_ADVANTAGE[a.name],  # type: ignore[arg-type]
        clip_low=a.clip_low,
        clip_high=a.clip_high,
        dual_clip=a.dual_clip,
        loss_aggregation=a.loss_aggregation or default_aggregation,  # type: ignore[arg-type]
        kl_coefficient=a.kl.coefficient,
        kl_estimator=a.kl.estimator,
        kl_placement=a.kl.placement,
        entropy_coefficient=a.entropy_coefficient,
        gamma=a.gamma,
        gae_lambda=a.gae_lambda,
        value_coefficient=a.value_coefficient,
        value_clip=a.value_clip,
        value_learning_rate=a.value_learning_rate,
        value_warmup_steps=a.value_warmup_steps,
    )


def optimization(spec: JobSpec, total_steps: int) -> Optimization:
    t = spec.training
    return Optimization(
        learning_rate=t.learning_rate,
        total_steps=total_steps,
        schedule=t.schedule,
        warmup_steps=t.warmup_steps,
        minibatches=t.minibatches,
        passes=t.passes,
        weight_decay=t.weight_decay,
        beta1=t.betas[0],
        beta2=t.betas[1],
        epsilon=t.epsilon,
        grad_clip=t.grad_clip,
        tokens_per_microbatch=t.tokens_per_microbatch,
        trainable=t.trainable,
        top_layers=t.top_layers,
        lora_rank=t.lora.rank,
        lora_alpha=t.lora.alpha,
        lora_dropout=t.lora.dropout,
        lora_targets=t.lora.targets,
        autocast=t.autocast,
        gradient_checkpointing=t.gradient_checkpointing,
    )


def _shard(samples: Sequence[FinishedSample]) -> str:
    """A name that follows from the samples of a call and what they say."""
    digest = hashlib.blake2b(digest_size=8)
    for sample in samples:
        digest.update(msgspec.msgpack.encode((sample.id, sample.tokens)))
    return digest.hexdigest()
