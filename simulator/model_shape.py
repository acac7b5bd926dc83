"""A model's shape: what its cost depends on, from a Hugging Face config or by name.

Understood are decoder-only transformers in the manner of Llama (Llama, Mistral, Qwen2, Qwen3,
SmolLM2, Gemma and their kin) and of GPT-2, dense or with experts (Mixtral, Qwen-MoE). Parameters
are counted as the model libraries count them, biases of queries, keys and values and norms
included; of GPT-2's kin the other biases and the position embeddings (under 1 %) are left out.
Sliding windows are not modelled: contexts cost as if every layer saw all.

Worked number: Llama-3.1-8B has 32 blocks of 218.1 M parameters (41.9 M attention, 176.2 M MLP,
norms) and twice 525.3 M of embeddings: 8.03 billion; a token's keys and values take
2 · 32 layers · 8 heads · 128 · 2 bytes = 131,072 bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import as_file, files
from typing import Any

from rlhfless.errors import UserError
from rlhfless.spec_file import read_mapping
from simulator.hardware import DTYPE_BYTES, Dtype, unknown

_NOT_GATED = frozenset(
    {"gpt2", "gpt_neox", "gpt_neo", "gptj", "opt", "phi", "starcoder2", "falcon"}
)
"""Model types whose MLP has two matrices; others have three (gate, up, down)."""
_BIASED_QKV = frozenset({"qwen2", "qwen2_moe", "gpt2", "gpt_neox", "opt", "phi", "starcoder2"})
_NORMED_QK = frozenset({"qwen3", "qwen3_moe"})
_GPT2_NAMES = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}
_DTYPES: dict[str, Dtype] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float8": "float8",
}


@dataclass(frozen=True)
class Experts:
    """The expert MLPs of a block."""

    count: int
    active: int
    """Experts a token goes to."""
    intermediate: int
    """Inner width of one expert."""
    shared_intermediate: int = 0
    """Inner width of what every token goes through as well."""
    dense_layers: int = 0
    """Layers that have an ordinary MLP instead."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer. ``intermediate``: inner width of an ordinary MLP."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    """Whether the output head is the embedding."""
    dtype: Dtype = "bfloat16"
    gated: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: Experts | None = None
    max_context: int = field(default=0, compare=False)
    """Longest context it was made for, tokens; 0: unknown."""

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def attention_parameters(self) -> int:
        """Of one block's projections, with biases and norms of queries and keys."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias = q + 2 * kv if self.qkv_bias else 0
        norms = 2 * self.head_dim if self.qk_norm else 0
        return self.hidden * (2 * q + 2 * kv) + bias + norms

    def mlp_parameters(self, intermediate: int) -> int:
        return (3 if self.gated else 2) * self.hidden * intermediate

    @property
    def parameters(self) -> int:
        """All of them; the embedding once where it is tied."""
        return self._count(self.experts.count if self.experts else 0)

    @property
    def active_parameters(self) -> int:
        """Those one token meets; what the FLOPs of a token follow from."""
        return self._count(self.experts.active if self.experts else 0)

    def _count(self, experts: int) -> int:
        blocks = self.layers * (self.attention_parameters + 2 * self.hidden)
        dense = self.layers
        if self.experts is not None:
            dense = self.experts.dense_layers
            inside = experts * self.mlp_parameters(self.experts.intermediate)
            inside += self.mlp_parameters(self.experts.shared_intermediate)
            inside += self.hidden * self.experts.count
            inside += self.hidden if self.experts.shared_intermediate else 0
            blocks += (self.layers - dense) * inside
        blocks += dense * self.mlp_parameters(self.intermediate)
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return blocks + embeddings + self.hidden

    @property
    def weight_bytes(self) -> int:
        return self.parameters * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    def with_dtype(self, dtype: Dtype) -> ModelShape:
        return replace(self, dtype=dtype)


def shape_from_config(config: Mapping[str, Any], name: str = "model") -> ModelShape:
    """The shape in the contents of a ``config.json``.

    Raises ``UserError`` for a missing size and for attention whose cost is not known here.
    """
    config = config.get("text_config", config)
    if "kv_lora_rank" in config:
        raise UserError(f"{name}: multi-head latent attention (kv_lora_rank) is not modelled")
    kind = str(config.get("model_type", "llama"))
    hidden = _size(config, "hidden_size", name)
    heads = _size(config, "num_attention_heads", name)
    intermediate = _get(config, "intermediate_size")
    if intermediate is None and kind == "gpt2":
        intermediate = 4 * hidden
    experts = _experts(config, name)
    return ModelShape(
        name=name,
        layers=_size(config, "num_hidden_layers", name),
        hidden=hidden,
        heads=heads,
        kv_heads=int(_get(config, "num_key_value_heads") or heads),
        head_dim=int(_get(config, "head_dim") or hidden // heads),
        intermediate=int(intermediate or (experts.intermediate if experts else 0)),
        vocabulary=_size(config, "vocab_size", name),
        tied=bool(config.get("tie_word_embeddings", kind in ("gpt2", "gemma", "gemma2"))),
        dtype=_dtype(config),
        gated=kind not in _NOT_GATED,
        qkv_bias=bool(config.get("attention_bias", kind in _BIASED_QKV)),
        qk_norm=kind in _NORMED_QK,
        experts=experts,
        max_context=int(_get(config, "max_position_embeddings") or 0),
    )


def load_shape(name_or_path: str, dtype: Dtype | None = None) -> ModelShape:
    """The shape of a model: a folder with a ``config.json``, that file, or a known name.

    Names are taken with or without owner and suffix (``Qwen/Qwen2.5-7B-Instruct`` is
    ``Qwen2.5-7B``). Raises ``UserError`` with the nearest known name.
    """
    path = os.path.join(name_or_path, "config.json")
    path = path if os.path.isfile(path) else name_or_path
    if os.path.isfile(path):
        try:
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not a model's config.json: {error}") from error
        if not isinstance(config, dict):
            raise UserError(f"{path} is not a model's config.json: no mapping")
        shape = shape_from_config(config, os.path.basename(os.path.normpath(name_or_path)))
    else:
        shape = _known(name_or_path)
    return shape if dtype is None else shape.with_dtype(dtype)


@cache
def known_shapes() -> Mapping[str, ModelShape]:
    """The built-in shapes by name, so that no download is needed."""
    with as_file(files("simulator") / "model_shapes.yaml") as path:
        raw = read_mapping(str(path), "table of shapes", "names and configs")
    return {name: shape_from_config(config, name) for name, config in raw.items()}


def _known(name: str) -> ModelShape:
    shapes = {known.lower(): shape for known, shape in known_shapes().items()}
    short = name.rstrip("/").rsplit("/", 1)[-1].lower().removeprefix("meta-")
    for suffix in ("", "-instruct", "-base", "-chat", "-hf", "-chat-hf", "-instruct-hf"):
        if short.endswith(suffix) and short[: len(short) - len(suffix)] in shapes:
            return shapes[short[: len(short) - len(suffix)]]
    raise unknown("model", name, known_shapes(), "model.path")


def _experts(config: Mapping[str, Any], name: str) -> Experts | None:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next((config[each] for each in names if config.get(each)), None)
    if count is None:
        return None
    layers = _size(config, "num_hidden_layers", name)
    intermediate = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    step = int(config.get("decoder_sparse_step") or 1)
    dense = set(config.get("mlp_only_layers") or ())
    dense |= set(range(int(config.get("first_k_dense_replace") or 0)))
    dense |= {layer for layer in range(layers) if (layer + 1) % step}
    shared = int(config.get("n_shared_experts") or 0) * intermediate
    return Experts(
        count=int(count),
        active=_size(config, "num_experts_per_tok", name),
        intermediate=intermediate,
        shared_intermediate=int(config.get("shared_expert_intermediate_size") or shared),
        dense_layers=len(dense),
    )


def _dtype(config: Mapping[str, Any]) -> Dtype:
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return _DTYPES.get(name.removeprefix("torch."), "bfloat16")


def _get(config: Mapping[str, Any], key: str) -> Any:
    value = config.get(key)
    return config.get(_GPT2_NAMES.get(key, key)) if value is None else value


def _size(config: Mapping[str, Any], key: str, name: str) -> int:
    value = _get(config, key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{name}: its config has no {key} (got {value!r})", param=key)
    return value
