"""Estimators of the KL divergence from log-probs of sampled tokens, and what each is right for.

With ``d = log pi(y) - log ref(y)`` for a token y sampled from pi (Schulman 2020,
http://joschu.net/blog/kl-approx.html):

    k1 = d                 unbiased value; high variance
    k2 = d^2 / 2           biased value; low variance
    k3 = exp(-d) - 1 + d   unbiased value; never negative

A value and its gradient are different things. Differentiated through log pi on on-policy samples,
k1 has a gradient of zero mean, k2 has exactly grad KL(pi || ref), and k3 has grad KL(ref || pi).
Inside the reward (no gradient through it), k1 alone gives grad KL(pi || ref). The tests enumerate
all of these on a small vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]

MAX_LOG_RATIO = 20.0
"""Exponents are clamped here, so that one absurd token cannot make a whole batch infinite."""


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    return logprobs - reference


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    return 0.5 * (logprobs - reference).square()


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    difference = reference - logprobs
    return torch.exp(difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)) - 1.0 - difference


def kl_loss(estimator: Estimator, logprobs: Tensor, reference: Tensor) -> Tensor:
    """The penalty per token ``[r]``, to be minimised through autograd.

    ``k1`` keeps its value but takes the gradient of k2 (straight-through), because its own would
    do nothing; so ``k1`` and ``k2`` both descend KL(pi || ref) and differ only in what they report.
    """
    match estimator:
        case "k1":
            surrogate = k2(logprobs, reference)
            return surrogate + (k1(logprobs, reference) - surrogate).detach()
        case "k2":
            return k2(logprobs, reference)
        case "k3":
            return k3(logprobs, reference)
