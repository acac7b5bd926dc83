"""Attention over sequences that lie back to back in one row, without padding in any other layer.

Tokens of many prompts and responses form one row of T tokens; linear layers, norms and the head
see those and no padding, and a prompt shared by several responses is there once. Only attention
needs to know who may see whom: ``Blocks`` gathers the queries and keys of like sequences into small
padded batches and puts the results back. It enters the model as a transformers attention function
and arrives there by keyword; a call without it is plain causal attention.

Shapes: T tokens, H query heads, K key-value heads, D head size; a block has S sequences of at most
Q queries and L keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "rlhfless_packed"
SMALL_SCORES = 1 << 14
"""Up to so many scores a head, explicit products beat the fused CPU kernel (1.5 times at 27 x 38),
and the scores that are kept for the backward pass are few."""


@dataclass(frozen=True)
class Block:
    """``queries`` ``[S, Q]`` and ``keys`` ``[S, L]`` are places in the row; ``mask``
    ``[S or 1, 1, Q, L]`` is 0 where a query sees a key and -inf elsewhere."""

    queries: Tensor
    keys: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Blocks:
    """``places`` ``[T]``: where each token's output lies in the blocks' outputs, back to back."""

    blocks: tuple[Block, ...]
    places: Tensor


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    blocks: Blocks | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """``query`` ``[B, H, T, D]``, ``key`` and ``value`` ``[B, K, T, D]``; ``[B, T, H, D]`` out.

    B is 1 with ``blocks``. Raises ``ValueError`` for variants of attention that are not these.
    """
    for name in ("softcap", "sliding_window", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise ValueError(f"packed attention does not do {name}")
    if blocks is None:
        plain: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return plain
    if scaling is None:
        scaling = float(query.shape[-1]) ** -0.5
    heads = query.shape[1]
    # One token's heads side by side, so that gathering moves whole rows.
    q, k, v = (x.transpose(1, 2).flatten(2)[0] for x in (query, key, value))
    parts = [_attend(block, q, k, v, heads, key.shape[1], scaling) for block in blocks.blocks]
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out.index_select(0, blocks.places).view(1, query.shape[2], heads, -1), None


def _attend(
    block: Block, q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int, scaling: float
) -> Tensor:
    """``[S * Q, H * D]`` from ``q`` ``[T, H * D]``, ``k`` and ``v`` ``[T, K * D]``."""
    (count, queries), keys = block.queries.shape, block.keys.shape[1]
    share = heads // kv_heads
    qs = q.index_select(0, block.queries.flatten()).view(count, queries, kv_heads, share, -1)
    ks = k.index_select(0, block.keys.flatten()).view(count, keys, kv_heads, -1)
    vs = v.index_select(0, block.keys.flatten()).view(count, keys, kv_heads, -1)
    if q.device.type == "cpu" and queries * keys <= SMALL_SCORES:
        # [S, K, share * Q, D] x [S, K, D, L]: heads of one key-value head in one product
        grouped = (qs * scaling).permute(0, 2, 3, 1, 4).flatten(2, 3)
        scores = torch.matmul(grouped, ks.permute(0, 2, 3, 1))
        scores = scores.view(count, kv_heads, share, queries, keys) + block.mask[:, :, None]
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(vs.dtype)
        out = torch.matmul(weights.flatten(2, 3), vs.transpose(1, 2))
        out = out.view(count, kv_heads, share, queries, -1).permute(0, 3, 1, 2, 4)
        return out.reshape(count * queries, -1)
    out = F.scaled_dot_product_attention(
        qs.flatten(2, 3).transpose(1, 2),
        ks.repeat_interleave(share, 2).transpose(1, 2),
        vs.repeat_interleave(share, 2).transpose(1, 2),
        attn_mask=block.mask.to(q.dtype),
        scale=scaling,
    )
    return out.transpose(1, 2).reshape(count * queries, -1)


def enable(model: Any) -> None:
    """Let ``model`` take ``blocks``. Raises ``ValueError`` if its attention cannot be exchanged."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
    model.set_attn_implementation(NAME)


def disable(model: Any) -> None:
    model.set_attn_implementation("sdpa")
