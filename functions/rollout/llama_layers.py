"""The arithmetic of a Llama-family layer on packed tokens, and causal attention over prompts.

T tokens (of any sequences, back to back), H hidden size, A query heads, K key-value heads, D head
size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from functions.rollout.llama_weights import LayerWeights, LlamaWeights

HEAD_CHUNK = 2048
"""Columns of logits computed at once on the CPU."""


def project(
    weights: LlamaWeights, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [T, A, D], keys and values [T, K, D] from the residual ``x`` [T, H]; rotated.

    ``cos`` and ``sin`` [T, 1, D] as ``LlamaWeights.rope`` gives them.
    """
    heads, kv_heads, dim = weights.heads, weights.kv_heads, weights.head_dim
    normed = F.rms_norm(x, x.shape[-1:], layer.attention_norm, weights.eps)
    qkv = F.linear(normed, layer.qkv, layer.qkv_bias).view(len(x), heads + 2 * kv_heads, dim)
    plain = qkv[:, : heads + kv_heads]
    if layer.q_norm is not None and layer.k_norm is not None:
        query = F.rms_norm(plain[:, :heads], (dim,), layer.q_norm, weights.eps)
        key = F.rms_norm(plain[:, heads:], (dim,), layer.k_norm, weights.eps)
        plain = torch.cat((query, key), 1)
    rotated = torch.addcmul(plain * cos, plain.roll(dim // 2, -1), sin)
    return rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]


def finish(weights: LlamaWeights, layer: LayerWeights, x: Tensor, attended: Tensor) -> Tensor:
    """The residual after the output projection of ``attended`` [T, A * D] and the feed-forward."""
    x = _add_linear(x, attended, layer.out, layer.out_bias)
    normed = F.rms_norm(x, x.shape[-1:], layer.mlp_norm, weights.eps)
    gate, up = F.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
    return _add_linear(x, weights.activation(gate).mul_(up), layer.down, layer.down_bias)


def logits(weights: LlamaWeights, x: Tensor) -> Tensor:
    """[T, V]"""
    normed = F.rms_norm(x, x.shape[-1:], weights.final_norm, weights.eps)
    head = weights.head
    if len(head) <= HEAD_CHUNK or head.device.type != "cpu":
        return F.linear(normed, head)
    # MKL loses a quarter on a product this wide; its narrow ones run at full rate.
    output = normed.new_empty(len(normed), len(head))
    for start in range(0, len(head), HEAD_CHUNK):
        columns = slice(start, start + HEAD_CHUNK)
        torch.mm(normed, head[columns].t(), out=output[:, columns])
    return output


def causal_attention(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
    """[T, A * D] of sequences back to back, longest first, each attending to itself.

    Sequences of similar length run together, padded on the right: causality alone keeps real
    tokens from the padding, so no mask is needed.
    """
    outputs: list[Tensor] = []
    offset = 0
    for bucket in _buckets(lengths):
        total = sum(bucket)
        parts = [tensor[offset : offset + total] for tensor in (query, key, value)]
        outputs.append(_bucket_attention(parts, bucket))
        offset += total
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _bucket_attention(parts: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    longest, count = lengths[0], len(lengths)
    index: Tensor | None = None
    if lengths[-1] != longest:
        sizes = torch.tensor(lengths, device=parts[0].device).unsqueeze(1)
        columns = torch.arange(longest, device=parts[0].device)
        starts = sizes.cumsum(0) - sizes
        real = columns < sizes
        index = torch.where(real, starts + columns, 0).flatten()
        parts = [part.index_select(0, index) for part in parts]
    query, key, value = (p.reshape(count, longest, -1, p.shape[-1]).transpose(1, 2) for p in parts)
    attended = F.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
    )
    packed = attended.transpose(1, 2).flatten(2).flatten(0, 1)
    return packed if index is None else packed[real.flatten()]


def _buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Runs of descending lengths in which none is below half of the first."""
    buckets: list[list[int]] = []
    for length in lengths:
        if buckets and 2 * length >= buckets[-1][0]:
            buckets[-1].append(length)
        else:
            buckets.append([length])
    return buckets


def _add_linear(x: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is not None:
        x = x + bias
    return torch.addmm(x, value, weight.t())
