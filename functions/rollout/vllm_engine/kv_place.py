"""What a request tells the KV connector: where its keys and values are kept, and which it may use.

Goes with every request through vLLM's ``kv_transfer_params``; made here by the engine's side, read
by the tier in vLLM's core. Imports no vLLM.
"""

from __future__ import annotations

from typing import Any

import msgspec

from prefix_cache.keys import KvIdentity

_OURS = "rlhfless"


class Place(msgspec.Struct, frozen=True):
    """``publish``: what is not in the object store ``store`` yet is put there. ``call`` is who
    asks; what was moved is told to ``address`` (``receipts``)."""

    store: str
    identity: KvIdentity
    publish: bool
    call: str
    address: str


def nothing() -> dict[str, Any]:
    """Of a request that leaves the object store alone."""
    return {"max_load_tokens": 0, "max_offload_tokens": 0}


def transfer(place: Place, tokens: int, *, load: bool) -> dict[str, Any]:
    """Of a request whose first ``tokens`` tokens are to be loaded, published or both."""
    if not tokens or not (load or place.publish):
        return nothing()
    return {
        # vLLM's own bounds: what they exclude is neither looked for nor kept.
        "max_load_tokens": tokens if load else 0,
        "max_offload_tokens": tokens if place.publish else 0,
        _OURS: msgspec.to_builtins(place),
    }


def place_in(params: dict[str, Any] | None) -> Place | None:
    """What ``transfer`` put there. Raises ``msgspec.ValidationError`` for anything else."""
    found = (params or {}).get(_OURS)
    return None if found is None else msgspec.convert(found, Place)
