"""A model for engines that are picky: vLLM's attention on CPUs takes heads of 32 and more."""

from __future__ import annotations

from typing import Any

from tests.conftest import make_model as make_tiny_model


def make_model(seed: int = 0, context: int = 512) -> Any:
    """Of 0.08M random parameters."""
    return make_tiny_model(
        seed,
        intermediate_size=96,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        tie_word_embeddings=False,
    )
