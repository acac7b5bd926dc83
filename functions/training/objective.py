"""The policy's objective on a batch: old log-probs, advantages, loss.

Two use it: an update, on the whole batch of its step, and what is done ahead of the update, on
those groups that are complete (``functions.training.ahead``).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from functions.packing import Indices, Pass
from functions.training import advantages
from functions.training.forward import Forward
from functions.training.inputs import check_batch
from functions.training.kl import k1, kl_loss
from functions.training.learner import Learner, Terms
from functions.training.losses import policy_loss
from functions.training.metrics import PolicyMetrics
from rlhfless.batches import Batch

Work: TypeAlias = Generator[None, None, None]
"""Yields between forward passes, so that its driver can send heartbeats or stop."""


class Objective:
    """Arrays of tokens are ``[R]`` over the batch's response tokens, on the learner's device.

    ``old`` and ``old_values`` are of the learner as it came in, for the samples that ``old_known``
    and ``values_known`` ``[N]`` name. Each worker of a group adds what it has computed of them to
    ``old_own`` and ``values_own``; ``complete`` makes them whole.
    """

    def __init__(self, learner: Learner, terms: Terms, batch: Batch) -> None:
        check_batch(batch, terms.algorithm, learner.policy)
        self._algorithm = terms.algorithm
        self._device = learner.policy.device
        self.batch = batch
        self.forward = Forward(learner, terms, batch)
        self.metrics = PolicyMetrics()
        self.has_critic = learner.critic is not None
        self.critic_only = (
            self.has_critic and terms.model.version < self._algorithm.value_warmup_steps
        )
        penalised = self._algorithm.kl_coefficient > 0
        self.in_reward = penalised and self._algorithm.kl_placement == "reward"
        self._group = learner.group
        self.old = self.zeros()
        self.old_known = batch.response_lengths == 0
        self.old_values = self.zeros()
        self.values_known = self.old_known.copy()
        several = self._group.size > 1
        self.old_own = self.zeros() if several else self.old
        self.values_own = self.zeros() if several else self.old_values
        self._reference = self.tensor(batch.reference_logprobs) if penalised else None
        self._advantages = self.zeros()

    @torch.no_grad()
    def look_back(self, first: Indices) -> Work:
        """Fill in old values, and those old log-probs that no step's own forward pass will give.

        ``first``: the samples of the first optimizer step, which sees the learner as it came in.
        """
        if self.has_critic:
            for part in self.forward.passes(np.flatnonzero(~self.values_known)):
                self.values_own[part.where] = self.forward.values(part)
                self.values_known[list(part.together)] = True
                yield
        needed = ~self.old_known
        if not self.in_reward:
            needed[first] = False
            needed &= not self.critic_only
        for part in self.forward.passes(np.flatnonzero(needed)):
            self.old_own[part.where] = self.forward.logprobs(part).logprobs
            self.old_known[list(part.together)] = True
            yield
        self.complete()

    def complete(self) -> None:
        """Have what every worker has computed of old log-probs and values."""
        if self._group.size > 1:
            self.old.copy_(self._group.sum(self.old_own))
            if self.has_critic:
                self.old_values.copy_(self._group.sum(self.values_own))

    def forget_old(self, samples: Indices) -> None:
        """Their log-probs come from their own forward pass, whichever worker makes it."""
        self.old_known[samples] = self.batch.response_lengths[samples] == 0
        if self._group.size == 1:
            return
        chosen = np.zeros(self.batch.num_samples, np.bool_)
        chosen[samples] = True
        where = np.flatnonzero(np.repeat(chosen, self.batch.response_lengths))
        self.old_own[torch.from_numpy(where).to(self._device)] = 0.0

    def estimate(self) -> advantages.Advantages:
        """Advantages by rewards and by what ``look_back`` found; ``losses`` uses them."""
        penalty = None
        if self.in_reward and self._reference is not None:
            penalty = k1(self.old, self._reference).cpu().numpy()
        result = advantages.compute(
            self._algorithm,
            scores=self.batch.rewards,
            lengths=self.batch.response_lengths,
            groups=self.batch.groups,
            kl=penalty,
            values=self.old_values.cpu().numpy() if self.has_critic else None,
        )
        self._advantages = self.tensor(result.advantages)
        return result

    def losses(self, part: Pass, *, own: bool, first_pass: bool) -> Tensor:
        """The loss of each token of a pass ``[r]``, penalty and entropy bonus in it, unweighted.

        ``own``: this pass is the one that gives its tokens' old log-probs. ``first_pass``: the
        entropy is measured. An idle pass has a loss like any other, for its gradient to be 0.
        """
        algorithm, where = self._algorithm, part.where
        bonus = algorithm.entropy_coefficient != 0.0
        result = self.forward.logprobs(part, entropy=bonus or first_pass, entropy_gradient=bonus)
        new = result.logprobs
        if part.idle:
            return new if result.entropy is None else new + result.entropy
        if own:
            self.old_own[where] = new.detach()
        old = self.old_own[where] if own else self.old[where]
        advantage = self._advantages[where]
        loss = policy_loss(
            new,
            old,
            advantage,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            dual_clip=algorithm.dual_clip,
        )
        if self._reference is not None and not self.in_reward:
            penalty = kl_loss(algorithm.kl_estimator, new, self._reference[where])
            loss = loss + algorithm.kl_coefficient * penalty
        if result.entropy is not None:
            self.metrics.entropy(result.entropy)
            if bonus:
                loss = loss - algorithm.entropy_coefficient * result.entropy
        self.metrics.tokens(new, old, advantage, algorithm)
        return loss

    def zeros(self) -> Tensor:
        return torch.zeros(len(self.batch.response_tokens), device=self._device)

    def tensor(self, values: NDArray[np.float32] | None) -> Tensor:
        return self.zeros() if values is None else torch.from_numpy(values).to(self._device)
