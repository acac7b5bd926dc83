"""One update of a learner by one batch: advantages, then passes x minibatches optimizer steps.

Every step's loss is a sum over tokens with weights that belong to the whole minibatch, so gradients
of its micro-batches add up to the minibatch's, however it is cut. Old log-probs and values are
those of the learner as it comes in: the first minibatch takes them from its own forward pass, the
others from a pass without gradients before the first optimizer step. What was done ahead of the
update is not done again (``functions.training.ahead``).

The work is a generator that yields between micro-batches, so its driver can send heartbeats or
stop. A learner whose update did not end is spoilt.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
import torch
from torch import Tensor

from functions.packing import Indices, Pass
from functions.training import advantages
from functions.training.ahead import Begun, take_up
from functions.training.forward import seeded, spread
from functions.training.learner import Learner
from functions.training.losses import normaliser, sample_weights, value_loss
from functions.training.metrics import batch_metrics, explained_variance, mean
from functions.training.minibatches import minibatches
from functions.training.objective import Objective, Work
from functions.training.optimizer import AdamW, learning_rate
from rlhfless.batches import Batch
from rlhfless.errors import InternalError
from rlhfless.messages import TrainRequest
from rlhfless.seeds import derive


class Update:
    """Arrays of tokens are ``[R]`` over the batch's response tokens, on the learner's device."""

    def __init__(self, learner: Learner, request: TrainRequest, batch: Batch) -> None:
        self._learner, self._request, self._batch = learner, request, batch
        self._algorithm, self._settings = request.algorithm, request.optimization
        self._objective = Objective(learner, request, batch)
        self._device = learner.policy.device
        self._group = learner.group
        self._call = request.model.version
        self._value_losses: list[Tensor] = []

    def run(self) -> Generator[None, None, dict[str, float]]:
        """Make the optimizer steps; returns the metrics by their public names.

        Raises ``InternalError``, naming the step, when a loss or a gradient is not finite.
        """
        settings, algorithm, objective = self._settings, self._algorithm, self._objective
        steps = list(
            minibatches(
                self._batch.groups, settings.minibatches, settings.passes, self._request.seed
            )
        )
        begun = take_up(self._learner, self._request, objective, steps[0])
        yield from objective.look_back(steps[0])
        result = objective.estimate()
        self._returns = objective.tensor(result.returns)

        rate = learning_rate(settings, self._call, settings.learning_rate)
        value_peak = algorithm.value_learning_rate or settings.learning_rate
        value_rate = learning_rate(settings, self._call, value_peak)
        for number, samples in enumerate(steps):
            weights = self._weights(samples)
            seed = derive(self._request.seed, "step", number)
            if self._group.rank:  # other samples, so other draws
                seed = derive(seed, "worker", self._group.rank)
            with seeded(seed, settings, self._device):
                if not objective.critic_only:
                    yield from self._policy_step(
                        number, samples, weights, rate, begun if number == 0 else None
                    )
                if self._learner.critic is not None:
                    yield from self._value_step(number, samples, weights, value_rate)
        return self._report(result, rate, begun)

    def _policy_step(
        self, number: int, samples: Indices, weights: Tensor, rate: float, begun: Begun | None
    ) -> Work:
        objective, learner = self._objective, self._learner
        loss = torch.zeros((), device=self._device)
        left = samples
        if begun is not None and len(begun.summed):
            scale = normaliser(
                self._batch.response_lengths[samples],
                self._algorithm.loss_aggregation,
                self._request.max_tokens,
            )
            learner.optimizer.scale_gradients(scale)
            loss = begun.loss * scale
            left = np.setdiff1d(samples, begun.summed)
        own = not objective.old_known[left].all()
        if own:
            objective.forget_old(left)
        objective.old_known[samples] = True
        first_pass = number < self._settings.minibatches

        def loss_of(part: Pass) -> Tensor:
            losses = objective.losses(part, own=own, first_pass=first_pass)
            return (weights[part.where] * losses).sum()

        loss, norm = yield from self._step(
            f"policy step {number}", learner.optimizer, left, loss_of, rate, loss
        )
        if own:
            objective.complete()
        objective.metrics.step(loss, norm)

    def _value_step(self, number: int, samples: Indices, weights: Tensor, rate: float) -> Work:
        algorithm, objective = self._algorithm, self._objective
        optimizer = self._learner.critic_optimizer
        if optimizer is None:
            raise InternalError("the value model has no optimizer")

        def loss_of(part: Pass) -> Tensor:
            where = part.where
            loss = value_loss(
                objective.forward.values(part),
                objective.old_values[where],
                self._returns[where],
                algorithm.value_clip,
            )
            return algorithm.value_coefficient * (weights[where] * loss).sum()

        nothing = torch.zeros((), device=self._device)
        loss, _ = yield from self._step(
            f"value step {number}", optimizer, samples, loss_of, rate, nothing
        )
        self._value_losses.append(loss)

    def _step(
        self,
        name: str,
        optimizer: AdamW,
        samples: Indices,
        loss_of: Callable[[Pass], Tensor],
        rate: float,
        total: Tensor,
    ) -> Generator[None, None, tuple[Tensor, Tensor]]:
        """Add gradients and loss of ``samples`` to those that are there, and step. ``total``: of
        this worker; the loss that is returned is of all."""
        for part in self._objective.forward.passes(samples):
            loss = loss_of(part)
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
            yield
        total = self._group.sum(total)
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

    def _report(self, result: advantages.Advantages, rate: float, begun: Begun) -> dict[str, float]:
        objective = self._objective
        old = objective.old.cpu().numpy() if objective.old_known.all() else None
        metrics = objective.metrics.report(rate, self._group)
        metrics |= batch_metrics(self._batch, result.advantages, old)
        metrics["training/overlapped_share"] = begun.share
        metrics["training/overlapped_s"] = begun.seconds
        if result.returns is not None:
            metrics["value/loss"] = mean(self._value_losses)
            metrics["value/explained_variance"] = explained_variance(
                objective.old_values.cpu().numpy(), result.returns
            )
        return metrics
