"""What a rollout instance is told about its engine when it starts."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

EngineName: TypeAlias = Literal["auto", "transformers", "vllm"]


class DraftingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Speculative decoding (``docs/drafting.md``): at most ``max_tokens`` draft tokens for a sample
    and iteration, found in ``memory_mib`` of tokens. ``free_tokens``: tokens that an iteration
    verifies in the time of one; 0: measured."""

    max_tokens: int = 8
    memory_mib: int = 128
    free_tokens: float = 0.0


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``auto``: vLLM where it is installed and the accelerator is a GPU, else transformers.

    The rest is vLLM's. ``kv_cache_bytes``: for keys and values (0: what is left of the memory vLLM
    takes); ``max_batch``: samples together (0: vLLM decides); ``lora_rank``: of the job's adapters
    (0: it trains none); ``kv_store``: whether it can store and load keys and values of prefixes;
    ``drafting``: None for none; ``greedy``: no request samples, all have temperature 0.
    """

    name: EngineName = "auto"
    tensor_parallel: int = 1
    kv_cache_bytes: int = 0
    max_batch: int = 0
    lora_rank: int = 0
    kv_store: bool = True
    drafting: DraftingOptions | None = None
    greedy: bool = False


PLAIN = EngineOptions()
"""Of what has no wishes."""
