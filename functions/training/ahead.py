"""What of an update can be done before its batch is complete, and how the update takes it up.

Which samples go into which optimizer step is known before there are samples, the old log-probs of a
sample concern nobody else, and where advantages compare the responses to one prompt, neither do the
gradients of a group: only the minibatch's normaliser is missing, a factor. So while the rest of a
step is generated

- old log-probs (and the value model's estimates) are computed for every sample that needs them;
- gradients of the first optimizer step are summed, without the normaliser, in the parameters'
  ``grad``, where the update adds the rest to them. So they take no more memory than training does.

Gradients are not summed where an advantage looks at the whole batch (REINFORCE++, PPO) or where a
pass is random (adapter dropout).

All of this is a cache of the learner, valid for one update: the one with the same terms and, by
their digests, the same samples. The sum of gradients cannot be taken apart, so it is used whole or
not at all. Nothing here touches a weight.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from functions.packing import Indices, Sequences
from functions.training.forward import spread
from functions.training.learner import Learner, Terms
from functions.training.losses import token_shares
from functions.training.metrics import PolicyMetrics
from functions.training.minibatches import minibatches
from functions.training.objective import Objective, Work
from rlhfless.batches import Batch
from rlhfless.errors import InternalError
from rlhfless.messages import Algorithm, GradientsRequest, Optimization

_GROUP_WISE = ("group_norm", "group_mean", "rloo")


@dataclass
class Ahead:
    """Samples are named by their place in the step's batch.

    ``old`` and ``values``: ``[length]`` by sample; of a group, what this worker contributes to
    them, as gradients, ``loss`` and ``metrics`` are this worker's. The rest is the same on all.
    ``summed``: samples whose gradients the learner holds; ``loss`` and ``metrics`` are theirs.
    ``torn``: a pass began and did not end, so nobody knows what the learner holds. ``seconds`` of
    work.
    """

    terms: tuple[object, ...]
    digests: dict[int, bytes] = field(default_factory=dict)
    old: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    summed: set[int] = field(default_factory=set)
    loss: Tensor | None = None
    metrics: PolicyMetrics = field(default_factory=PolicyMetrics)
    torn: bool = False
    seconds: float = 0.0

    def agrees(self, digests: dict[int, bytes]) -> bool:
        """Whether no sample of ``digests`` was another one before."""
        return all(self.digests.get(i, digest) == digest for i, digest in digests.items())


@dataclass(frozen=True)
class Begun:
    """What an update takes up: ``summed`` samples of its first step, whose gradients the learner
    holds without their normaliser; the sum of their losses; ``share`` of the batch's response
    tokens that need nothing more before the first optimizer step."""

    summed: Indices
    loss: Tensor
    share: float = 0.0
    seconds: float = 0.0


def sums_gradients(algorithm: Algorithm, settings: Optimization) -> bool:
    return algorithm.advantage in _GROUP_WISE and settings.lora_dropout == 0.0


def begin(learner: Learner, request: GradientsRequest, batch: Batch) -> Work:
    """Do what can be done for ``batch``, the part of the step that ``request`` names.

    What is done is noted after every pass, so the work may be stopped at any of them. Raises as
    ``check_batch`` does, and ``InternalError`` for a part that is not of whole groups.
    """
    started = time.perf_counter()
    index, groups = np.array(request.samples), np.array(request.groups, np.int32)
    _check_part(batch, index, groups)
    objective = Objective(learner, request, batch)
    digests = dict(zip(index.tolist(), _digests(batch), strict=True))
    ahead = learner.ahead
    terms = _terms(request, groups)
    if ahead is None or ahead.terms != terms or ahead.torn or not ahead.agrees(digests):
        learner.forget_ahead()
        ahead = learner.ahead = Ahead(terms)
    ahead.digests |= digests
    _fill(objective, ahead, index)
    objective.complete()
    objective.metrics = ahead.metrics
    settings = request.optimization
    first = next(minibatches(groups, settings.minibatches, 1, request.seed))
    in_first = np.isin(index, first)
    try:
        yield from objective.look_back(np.flatnonzero(in_first))
        if sums_gradients(request.algorithm, settings):
            fresh = np.flatnonzero(in_first & ~np.isin(index, list(ahead.summed)))
            yield from _sum_gradients(objective, request, ahead, index, fresh)
    finally:
        _note(objective, ahead, index)
        ahead.seconds += time.perf_counter() - started


def _sum_gradients(
    objective: Objective, request: GradientsRequest, ahead: Ahead, index: Indices, fresh: Indices
) -> Work:
    objective.estimate()
    lengths = objective.batch.response_lengths
    shares = token_shares(lengths, request.algorithm.loss_aggregation).astype(np.float32)
    weights = spread(shares, objective.batch, objective.old.device)
    own = not objective.old_known[fresh].all()
    if own:
        objective.forget_old(fresh)
    for part in objective.forward.passes(fresh):
        ahead.torn = True
        losses = objective.losses(part, own=own, first_pass=True)
        loss = (weights[part.where] * losses).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        ahead.loss = loss.detach() + (0.0 if ahead.loss is None else ahead.loss)
        ahead.summed.update(index[list(part.together)].tolist())
        objective.old_known[list(part.together)] = True
        ahead.torn = False
        yield


def take_up(learner: Learner, terms: Terms, objective: Objective, first: Indices) -> Begun:
    """Give ``objective``, which is on the whole batch, what was done ahead of it.

    ``first``: samples of the first optimizer step. The learner then holds no gradients but those of
    the ``summed`` samples. A cache that does not fit is forgotten.
    """
    batch = objective.batch
    nothing = Begun(np.empty(0, np.int64), torch.zeros((), device=objective.old.device))
    ahead, learner.ahead = learner.ahead, None
    if ahead is None or ahead.terms != _terms(terms, batch.groups):
        learner.forget_ahead()
        return nothing
    digests = dict(enumerate(_digests(batch)))
    everyone = np.arange(batch.num_samples)
    same = [i for i, digest in ahead.digests.items() if digests.get(i) == digest]
    _fill(objective, ahead, everyone, only=set(same))
    done = objective.old_known | objective.critic_only
    if objective.has_critic:
        done &= objective.values_known
    summed = np.array(sorted(ahead.summed), np.int64)
    if ahead.torn or ahead.loss is None or not ahead.agrees(digests):
        learner.forget_ahead()
        summed = nothing.summed
        if not objective.in_reward:
            objective.forget_old(first)  # from their own forward pass, as without a cache
    else:
        objective.metrics = ahead.metrics
    objective.complete()
    done[np.setdiff1d(first, summed)] = False
    share = float(batch.response_lengths[done].sum() / batch.response_lengths.sum())
    loss = nothing.loss if ahead.loss is None or not len(summed) else ahead.loss
    return Begun(summed, loss, share, ahead.seconds)


def _terms(terms: Terms, groups: NDArray[np.int32]) -> tuple[object, ...]:
    return (
        terms.model,
        terms.algorithm,
        terms.optimization,
        terms.seed,
        terms.temperature,
        terms.max_tokens,
        groups.tolist(),
    )


def _digests(batch: Batch) -> list[bytes]:
    """Of all that the work on a sample depends on, but the rest of its group."""
    sequences = Sequences.of(batch)
    reference = batch.reference_logprobs
    found = []
    for i, response in enumerate(sequences.responses):
        digest = hashlib.blake2b(digest_size=16)
        start, size = int(sequences.starts[i]), len(response)
        digest.update(f"{len(sequences.prompts[i])} {size} {float(batch.rewards[i])} ".encode())
        digest.update(sequences.prompts[i].tobytes() + response.tobytes())
        if reference is not None:
            digest.update(reference[start : start + size].tobytes())
        found.append(digest.digest())
    return found


def _check_part(batch: Batch, index: Indices, groups: NDArray[np.int32]) -> None:
    fits = 0 < len(index) == batch.num_samples == len(np.unique(index))
    if not fits or index.min() < 0 or index.max() >= len(groups):
        raise InternalError("the samples of a part of a batch are not numbered as its step's")
    if not np.array_equal(groups[index], batch.groups):
        raise InternalError("a part of a batch has other groups than its step")
    if np.isin(groups, batch.groups).sum() != batch.num_samples:
        raise InternalError("a part of a batch divides a group")


def _fill(objective: Objective, ahead: Ahead, index: Indices, only: set[int] | None = None) -> None:
    """From the cache into ``objective``, whose sample i is ``index[i]`` of the step."""
    for known, mask, tokens in (
        (ahead.old, objective.old_known, objective.old_own),
        (ahead.values, objective.values_known, objective.values_own),
    ):
        parts = torch.split(tokens, objective.batch.response_lengths.tolist())
        for i, sample in enumerate(index.tolist()):
            if sample in known and (only is None or sample in only):
                parts[i].copy_(known[sample])
                mask[i] = True


def _note(objective: Objective, ahead: Ahead, index: Indices) -> None:
    """From ``objective`` into the cache."""
    for known, mask, tokens in (
        (ahead.old, objective.old_known, objective.old_own),
        (ahead.values, objective.values_known, objective.values_own),
    ):
        parts = torch.split(tokens, objective.batch.response_lengths.tolist())
        for i in np.flatnonzero(mask).tolist():
            if int(index[i]) not in known:
                known[int(index[i])] = parts[i].clone()
