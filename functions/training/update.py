"""One update of a learner by one batch: advantages, then passes x minibatches optimizer steps.

Every step's loss is a sum over tokens with weights that belong to the whole minibatch, so gradients
of its micro-batches add up to the minibatch's, however it is cut. Old log-probs and values are
those of the learner as it comes in: the first minibatch takes them from its own forward pass, the
others from a pass without gradients before the first optimizer step.

The work is a generator that yields between micro-batches, so its driver can send heartbeats or
stop. A learner whose update did not end is spoilt.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from functions.packing import Indices, Pass
from functions.training import advantages
from functions.training.forward import Forward, seeded, spread
from functions.training.inputs import check_batch
from functions.training.kl import k1, kl_loss
from functions.training.learner import Learner
from functions.training.losses import policy_loss, sample_weights, value_loss
from functions.training.metrics import PolicyMetrics, batch_metrics, explained_variance, mean
from functions.training.optimizer import AdamW, learning_rate
from rlhfless.batches import Batch
from rlhfless.errors import InternalError
from rlhfless.messages import TrainRequest
from rlhfless.seeds import derive

Work = Generator[None, None, None]


def minibatches(groups: NDArray[np.int32], count: int, passes: int, seed: int) -> Iterator[Indices]:
    """The samples of each optimizer step: ``passes`` times ``count`` parts of like size.

    Groups are shuffled anew for each pass and laid end to end before the cut, so the responses to a
    prompt mostly stay together (which lets them share its computation); a cut may divide a group.
    """
    _, index = np.unique(groups, return_inverse=True)
    for number in range(passes):
        rank = np.random.default_rng(derive(seed, "pass", number)).permutation(index.max() + 1)
        yield from np.array_split(np.argsort(rank[index], kind="stable"), count)


class Update:
    """Arrays of tokens are ``[R]`` over the batch's response tokens, on the learner's device."""

    def __init__(self, learner: Learner, request: TrainRequest, batch: Batch) -> None:
        check_batch(batch, request.algorithm, learner.policy)
        self._learner, self._request, self._batch = learner, request, batch
        self._algorithm, self._settings = request.algorithm, request.optimization
        self._forward = Forward(learner, request, batch)
        self._device = learner.policy.device
        self._call = request.model.version
        self._critic_only = (
            learner.critic is not None and self._call < self._algorithm.value_warmup_steps
        )
        self._old = self._zeros()
        self._old_known = np.zeros(batch.num_samples, np.bool_)
        self._old_values = self._zeros()
        self._reference = (
            self._tensor(batch.reference_logprobs) if self._algorithm.kl_coefficient > 0 else None
        )
        self._policy_metrics = PolicyMetrics()
        self._value_losses: list[Tensor] = []

    def run(self) -> Generator[None, None, dict[str, float]]:
        """Make the optimizer steps; returns the metrics by their public names.

        Raises ``InternalError``, naming the step, when a loss or a gradient is not finite.
        """
        settings, algorithm = self._settings, self._algorithm
        steps = list(
            minibatches(
                self._batch.groups, settings.minibatches, settings.passes, self._request.seed
            )
        )
        yield from self._look_back(first=steps[0])
        result = self._estimate()
        self._advantages = self._tensor(result.advantages)
        self._returns = self._tensor(result.returns)

        rate = learning_rate(settings, self._call, settings.learning_rate)
        value_peak = algorithm.value_learning_rate or settings.learning_rate
        value_rate = learning_rate(settings, self._call, value_peak)
        for number, samples in enumerate(steps):
            passes = self._forward.passes(samples)
            weights = self._weights(samples)
            with seeded(derive(self._request.seed, "step", number), settings, self._device):
                if not self._critic_only:
                    yield from self._policy_step(number, samples, passes, weights, rate)
                if self._learner.critic is not None:
                    yield from self._value_step(number, passes, weights, value_rate)
        return self._report(result, rate)

    @torch.no_grad()
    def _look_back(self, first: Indices) -> Work:
        """Fill in old values and those old log-probs that no step's own forward pass will give."""
        everyone = np.arange(self._batch.num_samples)
        if self._learner.critic is not None:
            for part in self._forward.passes(everyone):
                self._old_values[part.where] = self._forward.values(part)
                yield
        if self._in_reward:
            needed = everyone
        elif self._critic_only:
            return
        else:
            needed = np.setdiff1d(everyone, first)
        if len(needed):
            for part in self._forward.passes(needed):
                self._old[part.where] = self._forward.logprobs(part).logprobs
                yield
        self._old_known[needed] = True

    def _estimate(self) -> advantages.Advantages:
        batch = self._batch
        penalty = None
        if self._in_reward and self._reference is not None:
            penalty = k1(self._old, self._reference).cpu().numpy()
        return advantages.compute(
            self._algorithm,
            scores=batch.rewards,
            lengths=batch.response_lengths,
            groups=batch.groups,
            kl=penalty,
            values=None if self._learner.critic is None else self._old_values.cpu().numpy(),
        )

    def _policy_step(
        self, number: int, samples: Indices, passes: list[Pass], weights: Tensor, rate: float
    ) -> Work:
        algorithm, own = self._algorithm, not self._old_known[samples].all()
        self._old_known[samples] = True
        bonus = algorithm.entropy_coefficient != 0.0
        measure = bonus or number < self._settings.minibatches

        def loss_of(part: Pass) -> Tensor:
            result = self._forward.logprobs(part, entropy=measure, entropy_gradient=bonus)
            new, where = result.logprobs, part.where
            if own:
                self._old[where] = new.detach()
            old, advantage = self._old[where], self._advantages[where]
            loss = policy_loss(
                new,
                old,
                advantage,
                clip_low=algorithm.clip_low,
                clip_high=algorithm.clip_high,
                dual_clip=algorithm.dual_clip,
            )
            if self._reference is not None and not self._in_reward:
                penalty = kl_loss(algorithm.kl_estimator, new, self._reference[where])
                loss = loss + algorithm.kl_coefficient * penalty
            if result.entropy is not None:
                self._policy_metrics.entropy(result.entropy)
                if bonus:
                    loss = loss - algorithm.entropy_coefficient * result.entropy
            self._policy_metrics.tokens(new, old, advantage, algorithm)
            return (weights[where] * loss).sum()

        loss, norm = yield from self._step(
            f"policy step {number}", self._learner.optimizer, passes, loss_of, rate
        )
        self._policy_metrics.step(loss, norm)

    def _value_step(self, number: int, passes: list[Pass], weights: Tensor, rate: float) -> Work:
        algorithm, optimizer = self._algorithm, self._learner.critic_optimizer
        if optimizer is None:
            raise InternalError("the value model has no optimizer")

        def loss_of(part: Pass) -> Tensor:
            where = part.where
            loss = value_loss(
                self._forward.values(part),
                self._old_values[where],
                self._returns[where],
                algorithm.value_clip,
            )
            return algorithm.value_coefficient * (weights[where] * loss).sum()

        loss, _ = yield from self._step(f"value step {number}", optimizer, passes, loss_of, rate)
        self._value_losses.append(loss)

    def _step(
        self,
        name: str,
        optimizer: AdamW,
        passes: list[Pass],
        loss_of: Callable[[Pass], Tensor],
        rate: float,
    ) -> Generator[None, None, tuple[Tensor, Tensor]]:
        total = torch.zeros((), device=self._device)
        for part in passes:
            loss = loss_of(part)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
            yield
        if not torch.isfinite(total):
            raise self._diverged(f"the loss of {name} is {total.item()}")
        try:
            norm = optimizer.step(self._settings, rate)
        except FloatingPointError as error:
            raise self._diverged(f"in {name} {error}") from error
        return total, norm

    def _diverged(self, what: str) -> InternalError:
        return InternalError(
            f"{what} in the call that makes version {self._call + 1}: nothing was committed",
            hint="most often the learning rate is too high (the weights ran away), or autocast "
            "overflowed; continue from the last version with a lower training.learning_rate",
        )

    def _weights(self, samples: Indices) -> Tensor:
        """The weight of every token of the minibatch in its losses; 0 outside it."""
        per_sample = np.zeros(self._batch.num_samples, np.float32)
        per_sample[samples] = sample_weights(
            self._batch.response_lengths[samples],
            self._algorithm.loss_aggregation,
            self._request.max_tokens,
        )
        return spread(per_sample, self._batch, self._device)

    def _report(self, result: advantages.Advantages, rate: float) -> dict[str, float]:
        old = self._old.cpu().numpy() if self._old_known.all() else None
        metrics = self._policy_metrics.report(rate)
        metrics |= batch_metrics(self._batch, result.advantages, old)
        if result.returns is not None:
            metrics["value/loss"] = mean(self._value_losses)
            metrics["value/explained_variance"] = explained_variance(
                self._old_values.cpu().numpy(), result.returns
            )
        return metrics

    @property
    def _in_reward(self) -> bool:
        return self._algorithm.kl_coefficient > 0 and self._algorithm.kl_placement == "reward"

    def _zeros(self) -> Tensor:
        return torch.zeros(len(self._batch.response_tokens), device=self._device)

    def _tensor(self, values: NDArray[np.float32] | None) -> Tensor:
        return self._zeros() if values is None else torch.from_numpy(values).to(self._device)
