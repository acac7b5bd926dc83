"""Log-probs of given responses, for the reference and the trainer alike.

``microbatches`` cuts the work into passes, ``token_logprobs`` does one; ``scatter`` puts the
results back into the caller's order. The vocabulary projection runs on response positions only, in
chunks of bounded memory; with gradients, chunks recompute their logits in the backward pass when
keeping them would exceed the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from functions.lm_head import Head, backbone, hidden_states, lm_head
from functions.microbatches import MicroBatch, collate, plan_microbatches

LOGIT_BYTES = 256 << 20
"""Bound on the float32 logits held at a time."""
_COPIES_FOR_BACKWARD = 3
"""Logits, log-softmax and its gradient live at once in a backward pass."""


@dataclass(frozen=True)
class TokenLogprobs:
    """float32 ``[N]`` each, in the order of the pass's response tokens.

    ``entropy`` (nats) of the whole next-token distribution; None where it was not asked for.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor | None = None


def microbatches(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    max_tokens: int,
    device: torch.device | str = "cpu",
) -> Iterator[MicroBatch]:
    """The passes over all sequences, made one at a time. Prompts must not be empty."""
    lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
    for samples in plan_microbatches(lengths, max_tokens):
        yield collate(prompts, responses, samples, device)


def token_logprobs(
    model: Any,
    microbatch: MicroBatch,
    temperature: float = 1.0,
    *,
    with_entropy: bool = False,
    entropy_gradient: bool = True,
    logit_bytes: int = LOGIT_BYTES,
) -> TokenLogprobs:
    """Log-probs of the response tokens at ``temperature`` (> 0), no truncation.

    Differentiable where gradients are on; ``entropy_gradient`` false makes the entropy a mere
    number, at less cost. ``model`` is a ``transformers`` causal model or a peft wrapper of one.
    """
    head = lm_head(model)
    hidden = hidden_states(backbone(model), microbatch)
    return head_logprobs(
        head,
        hidden,
        microbatch.targets,
        temperature,
        with_entropy=with_entropy,
        entropy_gradient=entropy_gradient,
        logit_bytes=logit_bytes,
    )


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
    """``token_logprobs`` from hidden states ``[N, hidden]`` and targets ``[N]``."""
    assert temperature > 0
    if len(targets) == 0:
        nothing = hidden.sum(dim=-1).float()
        return TokenLogprobs(nothing, nothing if with_entropy else None)

    def score(part: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.log_softmax(head(part).float() / temperature, dim=-1)
        chosen = scores.gather(-1, wanted[:, None]).squeeze(-1)
        return chosen, _entropy(scores, entropy_gradient) if with_entropy else chosen

    copies = _COPIES_FOR_BACKWARD if torch.is_grad_enabled() else 1
    size = max(1, logit_bytes // (4 * head.vocabulary * copies))
    recompute = torch.is_grad_enabled() and len(targets) > size
    parts = [
        checkpoint(score, part, wanted, use_reentrant=False) if recompute else score(part, wanted)
        for part, wanted in zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
    ]
    return TokenLogprobs(
        torch.cat([chosen for chosen, _ in parts]),
        torch.cat([entropy for _, entropy in parts]) if with_entropy else None,
    )


def scatter(microbatch: MicroBatch, values: torch.Tensor, out: list[torch.Tensor | None]) -> None:
    """Hand each sample of a pass its values: ``out[i]`` becomes ``[len(response i)]``."""
    for i, part in zip(
        microbatch.samples, torch.split(values, list(microbatch.lengths)), strict=True
    ):
        out[i] = part


def _entropy(scores: torch.Tensor, gradient: bool) -> torch.Tensor:
    """``-sum p log p`` over the last axis of log-probs ``[n, vocabulary]``."""
    if not gradient:
        scores = scores.detach()
    entropy: torch.Tensor = -torch.linalg.vecdot(scores.exp(), scores)
    return entropy
