"""Forward passes of a learner: log-probs, entropies, values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from functions.hidden import predictors
from functions.lm_head import lm_head
from functions.logprobs import TokenLogprobs, head_logprobs
from functions.packing import CPU_PASS_TOKENS, Indices, Pass, Sequences, idle_pass, lay_out, plan
from functions.training.division import divide
from functions.training.learner import Learner, Terms
from functions.training.shards import call
from rlhfless.batches import Batch
from rlhfless.errors import InternalError
from rlhfless.messages import Optimization


class Forward:
    """The passes of one update."""

    def __init__(self, learner: Learner, request: Terms, batch: Batch) -> None:
        self._learner = learner
        self._settings = request.optimization
        self._temperature = request.temperature
        self._sequences = Sequences.of(batch)
        # Modules that behave otherwise in training: adapter dropout and gradient checkpointing.
        self._has_modes = self._settings.lora_dropout > 0 or self._settings.gradient_checkpointing
        self._tokens = self._settings.tokens_per_microbatch
        if learner.policy.device.type == "cpu":
            self._tokens = min(self._tokens, CPU_PASS_TOKENS)

    def passes(self, samples: Indices) -> list[Pass]:
        """This worker's forward passes, the longest first, of those over ``samples``; every worker
        has as many."""
        policy, group = self._learner.policy, self._learner.group
        plans = [
            plan(self._sequences, share, self._tokens, packed=policy.packs)
            for share in divide(self._sequences, samples, group.size, packed=policy.packs)
        ]
        found = []
        for number in range(max(map(len, plans))):
            parts = [each[number] for each in plans if number < len(each)]
            if number < len(plans[group.rank]):
                own = plans[group.rank][number]
                part = lay_out(self._sequences, own, policy.device, packed=policy.packs)
            else:
                part = idle_pass(self._sequences, policy.device, packed=policy.packs)
            found.append(replace(part, together=tuple(i for each in parts for i in each)))
        return found

    def logprobs(
        self, part: Pass, *, entropy: bool = False, entropy_gradient: bool = False
    ) -> TokenLogprobs:
        """Of the policy, ``[r]``, differentiable where gradients are on."""
        policy = self._learner.policy

        def compute() -> tuple[Tensor, Tensor | None]:
            found = head_logprobs(
                lm_head(policy.model),
                predictors(policy.backbone, part),
                part.targets,
                self._temperature,
                with_entropy=entropy,
                entropy_gradient=entropy_gradient,
            )
            return found.logprobs, found.entropy

        with self._mode(policy.model):
            return TokenLogprobs(*call(policy.plain, compute))

    def values(self, part: Pass) -> Tensor:
        """Of the critic, ``[r]``, differentiable where gradients are on."""
        critic = self._learner.critic
        if critic is None:
            raise InternalError("this algorithm has no value model")
        with self._mode(critic):
            # A view as its result would escape the hooks by which a sharded module is gathered.
            return call(critic, lambda: critic.values(part).clone())

    @contextlib.contextmanager
    def _mode(self, module: torch.nn.Module) -> Iterator[None]:
        if self._has_modes:
            module.train(torch.is_grad_enabled())
        with torch.autocast(
            self._learner.policy.device.type,
            torch.bfloat16,
            enabled=self._settings.autocast == "bfloat16",
        ):
            yield


@contextlib.contextmanager
def seeded(seed: int, settings: Optimization, device: torch.device) -> Iterator[None]:
    """Adapter dropout draws from torch's global generators: seed them, and put them back after."""
    if settings.lora_dropout == 0.0:
        yield
        return
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def spread(per_sample: NDArray[np.float32], batch: Batch, device: torch.device) -> Tensor:
    """``[N]`` -> ``[R]``: each response's value for all its tokens."""
    return torch.from_numpy(np.repeat(per_sample, batch.response_lengths)).to(device)
