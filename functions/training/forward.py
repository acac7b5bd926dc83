"""Forward passes of a learner: log-probs, entropies, values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from functions.hidden import predictors
from functions.lm_head import lm_head
from functions.logprobs import TokenLogprobs, head_logprobs
from functions.packing import CPU_PASS_TOKENS, Indices, Pass, Sequences, lay_out, plan
from functions.training.learner import Learner, Terms
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
        """``samples`` in forward passes, the longest first."""
        policy = self._learner.policy
        return [
            lay_out(self._sequences, part, policy.device, packed=policy.packs)
            for part in plan(self._sequences, samples, self._tokens, packed=policy.packs)
        ]

    def logprobs(
        self, part: Pass, *, entropy: bool = False, entropy_gradient: bool = False
    ) -> TokenLogprobs:
        """Of the policy, ``[r]``, differentiable where gradients are on."""
        policy = self._learner.policy
        with self._mode(policy.model):
            return head_logprobs(
                lm_head(policy.model),
                predictors(policy.backbone, part),
                part.targets,
                self._temperature,
                with_entropy=entropy,
                entropy_gradient=entropy_gradient,
            )

    def values(self, part: Pass) -> Tensor:
        """Of the critic, ``[r]``, differentiable where gradients are on."""
        critic = self._learner.critic
        if critic is None:
            raise InternalError("this algorithm has no value model")
        with self._mode(critic):
            return critic.values(part)

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
