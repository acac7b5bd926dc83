"""Stored keys and values as one call uses them: what its requests are told, what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from functions.rollout.vllm_engine.kv_place import Place, nothing, transfer
from functions.rollout.vllm_engine.receipts import Receipt, Receipts
from prefix_cache.keys import KvIdentity
from rlhfless.messages import ModelRef, PrefixUse, RolloutDone

PUBLISH_S = 2.0
"""How long a rollout call's end waits for what its requests publish; it only counts that."""
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class KvSizes:
    """Of an engine. ``host_bytes``: for blocks between its cache and the object store."""

    block_tokens: int
    token_bytes: int
    host_bytes: int

    @property
    def host_tokens(self) -> int:
        return self.host_bytes // self.token_bytes


class KvUse:
    """Of the call ``name``, whose requests all have weights ``ref``. ``use`` None: it leaves the
    store alone. Of a prompt only whole blocks are stored."""

    def __init__(
        self,
        name: str,
        ref: ModelRef,
        store_url: str,
        use: PrefixUse | None,
        receipts: Receipts,
        sizes: KvSizes,
    ) -> None:
        self.sizes = sizes
        self._name = name
        self._use = use or PrefixUse(cuts=[], load=False, publish=False)
        self._receipts = receipts
        self._place = Place(
            store=store_url,
            identity=KvIdentity(ref.path, ref.job, ref.version, ref.dtype),
            publish=self._use.publish,
            call=name,
            address=receipts.address,
        )
        self._asked = 0
        receipts.begin(name)

    def stored_tokens(self, cuts: Sequence[int]) -> int:
        """Of a prompt's beginning, what can be in the store."""
        block = self.sizes.block_tokens
        return cuts[-1] // block * block if cuts else 0

    def transfer(self, cuts: Sequence[int]) -> dict[str, Any]:
        """What the next request is told."""
        tokens = self.stored_tokens(cuts)
        if not tokens or not (self._use.load or self._use.publish):
            return nothing()
        self._asked += 1
        return transfer(self._place, tokens, load=self._use.load)

    def stored(self, stall_s: float) -> tuple[Receipt, bool]:
        """What was moved, and whether all that the requests published has arrived; waits for that
        while receipts come."""
        found = self._receipts.wait(self._name, self._asked, stall_s)
        return found, found.ended >= self._asked

    def entered_in(self, done: RolloutDone) -> RolloutDone:
        """``done`` with what was moved; its prefill seconds without that."""
        if self._use.publish:
            found, _ = self.stored(PUBLISH_S)
        else:
            found = self._receipts.so_far(self._name)
        return msgspec.structs.replace(
            done,
            prefill_loaded=found.loaded * self.sizes.block_tokens,
            prefill_s=max(0.0, done.prefill_s - found.load_s),
            kv_loads=found.loads,
            kv_load_s=found.load_s,
            kv_loaded_bytes=found.loaded_bytes,
            kv_publish_s=found.publish_s,
            kv_published_bytes=found.published_bytes,
            kv_token_bytes=self.sizes.token_bytes,
            kv_block_tokens=self.sizes.block_tokens,
        )

    def end(self) -> None:
        self._receipts.end(self._name)


def head_size(config: Any) -> int:
    text = config.get_text_config()
    size: int = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return size


def kv_token_bytes(config: Any, dtype: str) -> int:
    """Of one token's keys and values in all layers, as the model's configuration has it."""
    text = config.get_text_config()
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    layers = 2 * text.num_hidden_layers
    return int(layers * kv_heads * head_size(config) * _ITEM_BYTES[dtype])
