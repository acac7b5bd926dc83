"""Batches and train calls for tests of the training function."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from functions.context import CallContext
from functions.training.crew import Alone
from functions.training.trainer import Trainer
from rlhfless.batches import Batch, encode_batch, write_batch
from rlhfless.messages import (
    Algorithm,
    CallInfo,
    GradientsDone,
    GradientsRequest,
    Heartbeat,
    ModelRef,
    Optimization,
    TrainDone,
    TrainRequest,
)
from rlhfless.objects import ObjectStore

GRPO = Algorithm(name="grpo", advantage="group_norm")
PPO = Algorithm(name="ppo", advantage="gae", gae_lambda=0.95)
SETTINGS = Optimization(learning_rate=1e-3, total_steps=10, minibatches=2)
LORA = msgspec.structs.replace(
    SETTINGS, trainable="lora", lora_rank=4, lora_targets=["q_proj", "v_proj"]
)


def make_batch(
    seed: int = 0,
    *,
    groups: int = 4,
    size: int = 4,
    longest: int = 12,
    reference: bool = False,
) -> Batch:
    """Random prompts, responses and rewards over a vocabulary of 64."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(4, 64, rng.integers(2, 9)) for _ in range(groups)]
    responses = [rng.integers(4, 64, rng.integers(1, longest + 1)) for _ in range(groups * size)]
    num_tokens = sum(map(len, responses))
    return Batch(
        prompt_tokens=np.concatenate([p for p in prompts for _ in range(size)]).astype(np.int32),
        prompt_lengths=np.array([len(p) for p in prompts for _ in range(size)], np.int32),
        response_tokens=np.concatenate(responses).astype(np.int32),
        response_lengths=np.array([len(r) for r in responses], np.int32),
        rollout_logprobs=rng.normal(-4, 0.1, num_tokens).astype(np.float32),
        rewards=rng.normal(size=groups * size).astype(np.float32),
        groups=np.repeat(np.arange(groups, dtype=np.int32), size),
        truncated=np.zeros(groups * size, np.bool_),
        reference_logprobs=(
            rng.normal(-4, 0.1, num_tokens).astype(np.float32) if reference else None
        ),
    )


def reorder(batch: Batch, order: Sequence[int]) -> Batch:
    """The same samples in another order, or some of them."""

    def pick(tokens: Any, lengths: Any) -> Any:
        parts = np.split(tokens, np.cumsum(lengths)[:-1])
        return np.concatenate([parts[i] for i in order])

    responses = batch.response_lengths
    index = np.array(order)
    return replace(
        batch,
        prompt_tokens=pick(batch.prompt_tokens, batch.prompt_lengths),
        prompt_lengths=batch.prompt_lengths[index],
        response_tokens=pick(batch.response_tokens, responses),
        response_lengths=responses[index],
        rollout_logprobs=pick(batch.rollout_logprobs, responses),
        rewards=batch.rewards[index],
        groups=batch.groups[index],
        truncated=batch.truncated[index],
        reference_logprobs=(
            None if batch.reference_logprobs is None else pick(batch.reference_logprobs, responses)
        ),
    )


class Job:
    """A job whose train calls are made one by one; every call's batch follows from its version."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        *,
        algorithm: Algorithm = GRPO,
        settings: Optimization = SETTINGS,
        name: str = "job",
    ) -> None:
        self.store = ObjectStore(str(folder))
        self.model, self.name = str(model), name
        self.algorithm, self.settings = algorithm, settings

    def ref(self, version: int, dtype: str = "float32") -> ModelRef:
        return ModelRef(path=self.model, job=self.name, version=version, dtype=dtype)

    def request(
        self,
        parent: int,
        *,
        call: str | None = None,
        batch: Batch | None = None,
        checkpoint: bool = False,
        dtype: str = "float32",
    ) -> TrainRequest:
        name = f"batches/{self.name}/{parent}"
        if batch is None:
            batch = make_batch(parent, reference=self.algorithm.kl_coefficient > 0)
        call = call or f"{self.name}/{parent}/train"
        return TrainRequest(
            call=CallInfo(id=call, job=self.name, step=parent, deadline_s=60, store=self.store.url),
            model=self.ref(parent, dtype),
            batch=write_batch(self.store, name, batch),
            algorithm=self.algorithm,
            optimization=self.settings,
            seed=parent,
            max_tokens=12,
            checkpoint=checkpoint,
            data_position={"epoch": 0, "index": parent},
        )

    def gradients_request(
        self, train: TrainRequest, batch: Batch, groups: Sequence[int]
    ) -> GradientsRequest:
        """For these groups of ``batch``, ahead of the call ``train``."""
        samples = np.flatnonzero(np.isin(batch.groups, groups)).tolist()
        return GradientsRequest(
            call=msgspec.structs.replace(train.call, id=f"{train.call.id}-{samples}"),
            model=train.model,
            batch=encode_batch(reorder(batch, samples)),
            samples=samples,
            groups=batch.groups.tolist(),
            algorithm=train.algorithm,
            optimization=train.optimization,
            seed=train.seed,
            temperature=train.temperature,
            max_tokens=train.max_tokens,
        )

    def gradients(self, trainer: Trainer, request: GradientsRequest) -> int:
        """Samples begun."""
        *others, done = trainer.gradients(request, self.context())
        assert all(isinstance(frame, Heartbeat) for frame in others)
        assert isinstance(done, GradientsDone)
        return done.num_samples

    def context(self, deadline_s: float = 60.0) -> CallContext:
        return CallContext(store=self.store, deadline=time.monotonic() + deadline_s)

    def train(self, trainer: Trainer, request: TrainRequest) -> TrainDone:
        *others, done = trainer.train(request, self.context())
        assert all(isinstance(frame, Heartbeat) for frame in others)
        assert isinstance(done, TrainDone)
        return done


def new_trainer() -> Trainer:
    """As a fresh instance has it."""
    torch.set_num_threads(1)
    return Trainer(Alone(torch.device("cpu")))
