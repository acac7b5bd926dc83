"""Attention of a decode step, and the merge that lets rows of a prompt share its keys and values.

R = rows x key-value heads, M queries per key-value head, C cached columns, D head size. Each
key-value head serves its group of query heads at once, so nothing is repeated.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """[R, M, D] from ``query`` [R, M, D], ``keys`` and ``values`` [R, C, D], ``mask`` [R, 1, C]."""
    return torch.bmm(_scores(query, keys, mask, scale).softmax(-1), values)


def attend_part(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """As ``attend`` over a part of the context, with the log of its softmax denominator [R, M]."""
    scores = _scores(query, keys, mask, scale)
    weights = scores.softmax(-1)
    # The largest weight is exp(0) / denominator.
    log_sum = scores.amax(-1) - weights.amax(-1).log_()
    return torch.bmm(weights, values), log_sum


def merge(first: Tensor, first_log: Tensor, second: Tensor, second_log: Tensor) -> Tensor:
    """Attention over both parts of a context: [..., D] from outputs [..., D] and logs [...]."""
    share = torch.sigmoid(first_log - second_log).unsqueeze(-1)
    return torch.lerp(second, first, share)


def _scores(query: Tensor, keys: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    if mask is None:
        return torch.baddbmm(query[:1, :1, :1], query, keys.transpose(1, 2), beta=0, alpha=scale)
    return torch.baddbmm(mask, query, keys.transpose(1, 2), alpha=scale)
