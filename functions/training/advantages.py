"""Advantages from rewards: plain numpy, ragged, no padding.

Shapes: N samples, R response tokens of all samples back to back in the order of the samples, so a
token array ``[R]`` goes with ``lengths [N]``. Sums run in float64; results are float32. Nothing
here looks at minibatches: advantages belong to the whole batch of a step.

A truncated response is treated as an ended episode: its score (the reward function did score the
cut text) stands at its last token and nothing is bootstrapped behind it. The length limit is part
of the task, and a bootstrapped value would count the future of a text twice, once as the value and
once in the score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhfless.errors import InternalError
from rlhfless.messages import Algorithm

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]

STD_EPSILON = 1e-6
WHITEN_EPSILON = 1e-8


@dataclass(frozen=True)
class Advantages:
    """``advantages`` ``[R]``; ``returns`` ``[R]``, what the value model learns (gae only)."""

    advantages: Floats
    returns: Floats | None = None


def compute(
    algorithm: Algorithm,
    *,
    scores: Floats,
    lengths: Ints,
    groups: Ints,
    kl: Floats | None = None,
    values: Floats | None = None,
) -> Advantages:
    """Advantages of a whole batch by ``algorithm.advantage``.

    ``scores`` ``[N]``; ``groups`` ``[N]``; ``kl`` ``[R]`` is k1 of the old policy against the
    reference where the penalty goes into the reward, else None; ``values`` ``[R]`` is the value
    model's estimate before each token (gae only).
    """
    rewards = token_rewards(scores, lengths, kl, algorithm.kl_coefficient)
    if algorithm.advantage == "gae":
        if values is None:
            raise InternalError("gae needs the value model's estimates")
        advantages, returns = gae(rewards, values, lengths, algorithm.gamma, algorithm.gae_lambda)
        return Advantages(_single(whiten(advantages)), _single(returns))
    if algorithm.advantage == "batch_norm":
        return Advantages(_single(batch_norm(rewards, lengths)))
    totals = scores.astype(np.float64) if kl is None else _sums(rewards, lengths)
    by_sample = {"group_norm": group_norm, "group_mean": group_mean, "rloo": rloo}
    return Advantages(_single(np.repeat(by_sample[algorithm.advantage](totals, groups), lengths)))


def token_rewards(scores: Floats, lengths: Ints, kl: Floats | None, beta: float) -> Doubles:
    """``r_t = [t is last] score - beta * kl_t``, ``[R]``. An empty response has no token to carry
    its score, which then is lost."""
    rewards = np.zeros(int(lengths.sum()), np.float64)
    if kl is not None:
        rewards -= beta * kl.astype(np.float64)
    filled = lengths > 0
    rewards[np.cumsum(lengths)[filled] - 1] += scores[filled]
    return rewards


def group_norm(rewards: Doubles, groups: Ints) -> Doubles:
    """GRPO (DeepSeekMath 2024, eq. 3.2): ``(R - mean_g) / (std_g + 1e-6)``, unbiased std; ``[N]``.

    Equal rewards, and a group of one, give exactly 0: there is nothing to compare.
    """
    _, index, count = _group_index(groups)
    centred = group_mean(rewards, groups)
    variance = np.bincount(index, centred**2) / np.maximum(count - 1, 1)
    return np.asarray(centred / (np.sqrt(variance)[index] + STD_EPSILON), np.float64)


def group_mean(rewards: Doubles, groups: Ints) -> Doubles:
    """Dr. GRPO (Liu et al. 2025): ``R - mean_g``, without the division that favours easy and hard
    prompts over the rest; ``[N]``."""
    _, index, count = _group_index(groups)
    centred = rewards - (np.bincount(index, rewards) / count)[index]
    centred[zero_std(rewards, groups)[index]] = 0.0  # the mean of equal floats may be off by an ulp
    return np.asarray(centred, np.float64)


def rloo(rewards: Doubles, groups: Ints) -> Doubles:
    """Leave-one-out baseline (Ahmadian et al. 2024): R minus the mean of the *other* responses,
    ``n / (n - 1) * (R - mean_g)``; ``[N]``. A group of one gives 0."""
    _, index, count = _group_index(groups)
    scale = count / np.maximum(count - 1, 1)
    return np.asarray(group_mean(rewards, groups) * scale[index], np.float64)


def batch_norm(rewards: Doubles, lengths: Ints) -> Doubles:
    """REINFORCE++ (Hu 2025) with gamma 1: reward to go, whitened over all tokens; ``[R]``."""
    totals = np.cumsum(rewards)
    ends = np.repeat(np.cumsum(lengths), lengths)
    return whiten(totals[ends - 1] - totals + rewards)


def gae(
    rewards: Doubles, values: Floats, lengths: Ints, gamma: float, lam: float
) -> tuple[Doubles, Doubles]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16): ``(advantages, returns)``.

    ``delta_t = r_t + gamma V_{t+1} - V_t``, ``A_t = delta_t + gamma lam A_{t+1}``, with V and A
    zero behind the last token; ``returns = A + V``, taken before any whitening. All ``[R]``.
    """
    values = values.astype(np.float64)
    following = np.append(values[1:], 0.0)
    ends = np.cumsum(lengths)
    following[ends[lengths > 0] - 1] = 0.0
    delta = rewards + gamma * following - values
    advantages = delta.copy()
    if gamma * lam > 0:
        # One vectorised step a position, from the back; only samples that reach it take part.
        starts = ends - lengths
        order = np.argsort(-lengths, kind="stable")
        starts, sorted_lengths = starts[order], lengths[order]
        for position in range(int(lengths.max(initial=0)) - 2, -1, -1):
            active = int(np.searchsorted(-sorted_lengths, -(position + 1), side="left"))
            at = starts[:active] + position
            advantages[at] += gamma * lam * advantages[at + 1]
    return advantages, advantages + values


def whiten(values: Doubles) -> Doubles:
    """``(x - mean) / sqrt(var + 1e-8)`` with the unbiased variance over all entries of ``[R]``."""
    if len(values) < 2:
        return values - values.mean() if len(values) else values
    return np.asarray(
        (values - values.mean()) / np.sqrt(values.var(ddof=1) + WHITEN_EPSILON), np.float64
    )


def zero_std(rewards: Doubles, groups: Ints) -> NDArray[np.bool_]:
    """For each distinct group: whether all its rewards are equal, so that it teaches nothing."""
    unique, index, _ = _group_index(groups)
    low = np.full(len(unique), np.inf)
    high = np.full(len(unique), -np.inf)
    np.minimum.at(low, index, rewards)
    np.maximum.at(high, index, rewards)
    return np.asarray(low == high, np.bool_)


def _group_index(groups: Ints) -> tuple[Ints, NDArray[np.int64], NDArray[np.int64]]:
    """Distinct groups, each sample's index into them, and their sizes."""
    return np.unique(groups, return_inverse=True, return_counts=True)


def _sums(tokens: Doubles, lengths: Ints) -> Doubles:
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return np.asarray(np.bincount(owner, tokens, minlength=len(lengths)), np.float64)


def _single(values: Doubles) -> Floats:
    return values.astype(np.float32)
