"""Log-probs of given tokens from hidden states, for the reference and the trainer alike.

The vocabulary projection runs on response positions only, in chunks of bounded memory; with
gradients, chunks recompute their logits in the backward pass when keeping them would exceed the
bound. Which hidden states belong to which tokens is the affair of ``functions.packing``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint

from functions.lm_head import Head

LOGIT_BYTES = 256 << 20
"""Bound on the memory of a chunk: its float32 logits and what is made of them."""
_COPIES = 3
"""Logits, logits at temperature and log-softmax live at once; so do three in a backward pass."""


@dataclass(frozen=True)
class TokenLogprobs:
    """float32 ``[N]`` each, in the order of the targets.

    ``entropy`` (nats) of the whole next-token distribution; None where it was not asked for.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor | None = None


def head_logprobs(
    head: Head,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    *,
    with_entropy: bool = False,
    entropy_gradient: bool = True,
    logit_bytes: int = LOGIT_BYTES,
) -> TokenLogprobs:
    """Log-probs of ``targets`` ``[N]`` predicted from ``hidden`` ``[N, hidden]``.

    At ``temperature`` (> 0), without truncation. Differentiable where gradients are on;
    ``entropy_gradient`` false makes the entropy a mere number, at less cost.
    """
    assert temperature > 0
    if len(targets) == 0:
        nothing = hidden.sum(dim=-1).float()
        return TokenLogprobs(nothing, nothing if with_entropy else None)

    def score(part: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.log_softmax(head(part).float() / temperature, dim=-1)
        chosen = scores.gather(-1, wanted[:, None]).squeeze(-1)
        return chosen, _entropy(scores, entropy_gradient) if with_entropy else chosen

    size = max(1, logit_bytes // (4 * head.vocabulary * _COPIES))
    recompute = torch.is_grad_enabled() and len(targets) > size
    parts = [
        checkpoint(score, part, wanted, use_reentrant=False) if recompute else score(part, wanted)
        for part, wanted in zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    ]
    return TokenLogprobs(
        torch.cat([chosen for chosen, _ in parts]),
        torch.cat([entropy for _, entropy in parts]) if with_entropy else None,
    )


def _entropy(scores: torch.Tensor, gradient: bool) -> torch.Tensor:
    """``-sum p log p`` over the last axis of log-probs ``[n, vocabulary]``."""
    if not gradient:
        scores = scores.detach()
    entropy: torch.Tensor = -torch.linalg.vecdot(scores.exp(), scores)
    return entropy
