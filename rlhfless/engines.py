"""What a rollout instance is told about its engine when it starts."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

EngineName: TypeAlias = Literal["auto", "transformers", "vllm"]


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``auto``: vLLM where it is installed and the accelerator is a GPU, else transformers.

    The rest is vLLM's. ``kv_cache_bytes``: for keys and values (0: what is left of the memory vLLM
    takes); ``max_batch``: samples together (0: vLLM decides); ``lora_rank``: of the job's adapters
    (0: it trains none).
    """

    name: EngineName = "auto"
    tensor_parallel: int = 1
    kv_cache_bytes: int = 0
    max_batch: int = 0
    lora_rank: int = 0


PLAIN = EngineOptions()
"""Of what has no wishes."""
