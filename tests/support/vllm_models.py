"""A model for engines that are picky: vLLM's attention on CPUs takes heads of 32 and more."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def make_model(seed: int) -> Any:
    """Of 0.08M random parameters, with a context of 512."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.2,
        pad_token_id=0,
        dtype="float32",
    )
    return LlamaForCausalLM(config).eval()
