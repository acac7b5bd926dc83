"""Losses per response token, and the weights that turn them into one number.

Every loss is ``sum_t weight_t * loss_t`` over the tokens of a minibatch. The weights carry the
normaliser of the *whole* minibatch, so any split of it into micro-batches or shards adds up to the
same loss and the same gradient. Tokens are ragged: ``[r]`` for the r response tokens at hand.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from functions.training.kl import MAX_LOG_RATIO
from rlhfless.errors import InternalError

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum"]


def token_shares(lengths: NDArray[np.int32], aggregation: Aggregation) -> NDArray[np.float64]:
    """What sets the tokens of a response apart from those of others ``[n]``; ``lengths`` ``[n]``.

    A token's weight in the loss of a minibatch is its share times the minibatch's ``normaliser``.
    The share follows from its own response, so gradients can be summed before the rest is known.
    """
    if aggregation == "sequence_mean":
        return np.asarray(1.0 / np.maximum(lengths, 1), np.float64)
    return np.ones(len(lengths))


def normaliser(lengths: NDArray[np.int32], aggregation: Aggregation, max_tokens: int) -> float:
    """Of a whole minibatch of n responses; with the shares this gives every token the weight

    token_mean     1 / sum(lengths)      every token counts the same (DAPO)
    sequence_mean  1 / (n * length_i)    every response counts the same (GRPO as published)
    sequence_sum   1 / (n * max_tokens)  no normalisation by length (Dr. GRPO); max_tokens > 0
    """
    count = len(lengths)
    match aggregation:
        case "token_mean":
            return 1.0 / max(int(lengths.sum()), 1)
        case "sequence_mean":
            return 1.0 / count
        case "sequence_sum":
            if max_tokens <= 0:
                raise InternalError("sequence_sum needs the request's max_tokens")
            return 1.0 / (count * max_tokens)


def sample_weights(
    lengths: NDArray[np.int32], aggregation: Aggregation, max_tokens: int
) -> NDArray[np.float32]:
    """The weight of every token of each response of a minibatch ``[n]``; ``lengths`` ``[n]``."""
    weights = token_shares(lengths, aggregation) * normaliser(lengths, aggregation, max_tokens)
    return weights.astype(np.float32)


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """PPO's clipped surrogate per token ``[r]``, to be minimised (Schulman et al. 2017, eq. 7).

    ``max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high))``. With ``dual_clip`` c > 1, a
    token with A < 0 is bounded by ``-A c`` (Ye et al. 2020), so a ratio that ran away cannot
    dominate.
    """
    ratio = torch.exp((logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    if dual_clip is not None:
        bound = torch.minimum(loss, -advantages * dual_clip)
        loss = torch.where(advantages < 0, bound, loss)
    return loss


def is_clipped(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """Which tokens ``[r]`` get no gradient because the clip is active on their side."""
    difference = logprobs - old_logprobs
    ratio = torch.exp(difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    above = (ratio > 1.0 + clip_high) & (advantages > 0)
    below = (ratio < 1.0 - clip_low) & (advantages < 0)
    return above | below


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Squared error per token ``[r]``; with ``clip``, the worse of it and that of the value kept
    within ``old_values +- clip`` (PPO's reference code). The caller's coefficient holds the 1/2."""
    error = (values - returns).square()
    if clip is None:
        return error
    near = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(error, (near - returns).square())
