"""The weights of a Llama-family model, laid out for decoding.

Projections that share an input are one matrix (q, k, v; gate, up): fewer and larger products. The
fused matrices are the storage; the module's own parameters become views of them. So nothing is
held twice, and a version that is copied into the module in place is served without further ado.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from functions.rollout.columns import LayerShape

_FAMILY = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
# Rotary tables that depend on the position alone; others are recomputed as sequences grow.
_STATIC_ROPE = {"default", "linear", "llama3", "yarn"}


@dataclass(frozen=True)
class LayerWeights:
    """H hidden size, A query heads, K key-value heads, D head size, F feed-forward size.

    ``qkv`` [(A + 2K) * D, H], ``out`` [H, A * D], ``gate_up`` [2F, H], ``down`` [H, F]; biases
    None where the model has none; ``q_norm`` and ``k_norm`` [D] only for Qwen3.
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    attention_norm: Tensor
    mlp_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None


class LlamaWeights:
    """Reads (and re-homes) the parameters of a model for which ``supports`` holds."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._model = model
        attention = model.model.layers[0].self_attn
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = attention.head_dim
        self.eps: float = config.rms_norm_eps
        self.scale: float = attention.scaling
        self.activation: Callable[[Tensor], Tensor] = model.model.layers[0].mlp.act_fn
        self._cos = self._sin = torch.empty(0)
        self._fused: dict[int, tuple[Tensor, Tensor | None]] = {}
        self.layers: list[LayerWeights] = []
        self.refresh()

    @property
    def embedding(self) -> Tensor:
        weight: Tensor = self._model.model.embed_tokens.weight
        return weight

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def layer_shapes(self) -> list[LayerShape]:
        """Of what each layer caches."""
        shape = LayerShape(self.kv_heads, self.head_dim, self.kv_heads, self.head_dim)
        return [shape] * len(self.layers)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @torch.no_grad()
    def refresh(self) -> None:
        """Call when a version may have been loaded: fuses again what was replaced, not copied."""
        self.final_norm: Tensor = self._model.model.norm.weight
        self.head: Tensor = self._model.lm_head.weight
        self.layers = [self._layer(layer) for layer in self._model.model.layers]

    def rope(self, length: int) -> tuple[Tensor, Tensor]:
        """Tables [>= length, D]: cosine, and sine with the sign of ``rotate_half`` folded in."""
        if len(self._cos) < length:
            positions = torch.arange(max(length, 2 * len(self._cos)), device=self.device)
            probe = torch.empty(1, dtype=self.dtype, device=self.device)
            cos, sin = self._model.model.rotary_emb(probe, positions.unsqueeze(0))
            half = self.head_dim // 2
            self._cos = cos[0]
            self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)
        return self._cos, self._sin

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Tables [T, 1, D] for positions [T] (on the CPU)."""
        cos, sin = self.rope(int(positions.max()) + 1)
        positions = positions.to(cos.device)
        return cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)

    def _layer(self, layer: Any) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        qkv, qkv_bias = self._fuse((attention.q_proj, attention.k_proj, attention.v_proj))
        gate_up, gate_up_bias = self._fuse((mlp.gate_proj, mlp.up_proj))
        return LayerWeights(
            qkv=qkv,
            qkv_bias=qkv_bias,
            out=attention.o_proj.weight,
            out_bias=attention.o_proj.bias,
            gate_up=gate_up,
            gate_up_bias=gate_up_bias,
            down=mlp.down_proj.weight,
            down_bias=mlp.down_proj.bias,
            attention_norm=layer.input_layernorm.weight,
            mlp_norm=layer.post_attention_layernorm.weight,
            q_norm=_weight(attention, "q_norm"),
            k_norm=_weight(attention, "k_norm"),
        )

    def _fuse(self, linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
        fused = self._fused.get(id(linears[0]))
        if fused is None or not _holds(fused, linears):
            fused = (
                _join([linear.weight for linear in linears]),
                None if linears[0].bias is None else _join([linear.bias for linear in linears]),
            )
            self._fused[id(linears[0])] = fused
        return fused


def supports(model: Any) -> bool:
    """Whether the lean path computes what the model's own forward does."""
    if type(model).__name__ not in _FAMILY:
        return False
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in _STATIC_ROPE:
        return False
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        return False
    if type(model).__name__ == "MistralForCausalLM" and config.sliding_window is not None:
        return False
    return (
        all(
            type(module) is nn.Linear
            for layer in model.model.layers
            for module in (
                layer.self_attn.q_proj,
                layer.self_attn.k_proj,
                layer.self_attn.v_proj,
                layer.self_attn.o_proj,
                layer.mlp.gate_proj,
                layer.mlp.up_proj,
                layer.mlp.down_proj,
            )
        )
        and type(model.lm_head) is nn.Linear
    )


def _join(parameters: Sequence[Tensor]) -> Tensor:
    """One tensor of all rows; the parameters become views of it."""
    joined = torch.cat([parameter.data for parameter in parameters])
    views = torch.split(joined, [len(parameter) for parameter in parameters])
    for parameter, view in zip(parameters, views, strict=True):
        parameter.data = view
    return joined


def _holds(fused: tuple[Tensor, Tensor | None], linears: Sequence[nn.Linear]) -> bool:
    """Whether the parameters still are the views that ``_join`` made."""
    for tensor, parameters in (
        (fused[0], [linear.weight for linear in linears]),
        (fused[1], [linear.bias for linear in linears]),
    ):
        if tensor is None:
            if any(parameter is not None for parameter in parameters):
                return False
            continue
        address = tensor.data_ptr()
        for parameter in parameters:
            if parameter is None or parameter.data_ptr() != address:
                return False
            address += parameter.numel() * parameter.element_size()
    return True


def _weight(module: nn.Module, name: str) -> Tensor | None:
    child = getattr(module, name, None)
    return None if child is None else child.weight
