"""An update's metrics under their public names (``docs/algorithms.md`` says what each one is)."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from functions.training.advantages import zero_std
from functions.training.group import SOLO, Group
from functions.training.kl import k3
from functions.training.losses import is_clipped
from rlhfless.batches import Batch
from rlhfless.messages import Algorithm


class PolicyMetrics:
    """Sums over the optimizer steps of an update, of this worker's tokens; ``report`` is of all
    workers', and read once at the end. A step's loss and norm are all workers' as they come."""

    def __init__(self) -> None:
        self._steps: list[tuple[Tensor, Tensor]] = []
        self._sums: list[Tensor] = []
        self._largest: list[Tensor] = []
        self._entropy: list[Tensor] = []
        self._tokens = 0
        self._entropy_tokens = 0

    @torch.no_grad()
    def tokens(self, new: Tensor, old: Tensor, advantages: Tensor, algorithm: Algorithm) -> None:
        """One pass's tokens ``[n]``: log-probs as the step saw them, and of the update's start."""
        clipped = is_clipped(
            new, old, advantages, clip_low=algorithm.clip_low, clip_high=algorithm.clip_high
        )
        self._sums.append(torch.stack((k3(old, new).sum(), clipped.sum().float())))
        self._largest.append((new - old).max())
        self._tokens += len(new)

    def entropy(self, entropy: Tensor) -> None:
        self._entropy.append(entropy.detach().sum())
        self._entropy_tokens += len(entropy)

    def step(self, loss: Tensor, norm: Tensor) -> None:
        self._steps.append((loss, norm))

    def report(self, rate: float, group: Group = SOLO) -> dict[str, float]:
        metrics = {
            "policy/loss": 0.0,
            "policy/kl": 0.0,
            "policy/clip_fraction": 0.0,
            "policy/ratio_max": 1.0,
            "policy/grad_norm": 0.0,
            "policy/learning_rate": rate if self._steps else 0.0,
        }
        kl, clipped, tokens, entropy, entropy_tokens = self._totals(group)
        if self._steps:
            metrics["policy/loss"] = mean([loss for loss, _ in self._steps])
            metrics["policy/grad_norm"] = mean([norm for _, norm in self._steps])
            metrics["policy/kl"] = kl / tokens
            metrics["policy/clip_fraction"] = clipped / tokens
            largest = torch.stack(self._largest).max().item() if self._largest else -math.inf
            # e^80 is the largest ratio told, so that the number stays one.
            metrics["policy/ratio_max"] = float(
                torch.tensor(group.largest(largest), dtype=torch.float32).clamp(max=80).exp()
            )
        if entropy_tokens:
            metrics["policy/entropy"] = entropy / entropy_tokens
        return metrics

    def _totals(self, group: Group) -> list[float]:
        """KL, clipped tokens, tokens; entropy, tokens it was measured on."""
        kl, clipped = torch.stack(self._sums).sum(0).tolist() if self._sums else (0.0, 0.0)
        entropy = float(torch.stack(self._entropy).sum()) if self._entropy else 0.0
        mine = (kl, clipped, self._tokens, entropy, self._entropy_tokens)
        found: list[float] = group.sum(torch.tensor(mine, dtype=torch.float64)).tolist()
        return found


def mean(values: list[Tensor]) -> float:
    return float(torch.stack(values).mean())


def batch_metrics(
    batch: Batch, advantages: NDArray[np.float32], old: NDArray[np.float32] | None
) -> dict[str, float]:
    """Of the batch as a whole; ``old`` ``[R]`` where the policy was run at all."""
    metrics = {
        "advantages/mean": float(advantages.mean(dtype=np.float64)),
        "advantages/std": float(advantages.std(dtype=np.float64)),
        "reward/frac_zero_std_groups": float(
            zero_std(batch.rewards.astype(np.float64), batch.groups).mean()
        ),
    }
    if old is not None:
        theirs = torch.from_numpy(batch.rollout_logprobs)
        ours = torch.from_numpy(old)
        metrics["mismatch/kl"] = float(k3(theirs, ours).double().mean())
        metrics["mismatch/max_abs_logprob_diff"] = float((theirs - ours).abs().max())
        if batch.reference_logprobs is not None:
            reference = torch.from_numpy(batch.reference_logprobs)
            metrics["reference/kl"] = float(k3(ours, reference).double().mean())
    return metrics


def explained_variance(values: NDArray[np.float32], returns: NDArray[np.float32]) -> float:
    """``1 - var(returns - values) / var(returns)``; 0 where all returns are equal."""
    variance = float(returns.var(dtype=np.float64))
    if variance == 0.0:
        return 0.0
    return 1.0 - float((returns - values).var(dtype=np.float64)) / variance
