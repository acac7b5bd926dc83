"""Names of keys and values that another engine stores: blocks under hashes of its own.

vLLM hashes the tokens up to a block's end, chained from block to block, but not what model or
weights they went through. The name adds that: a folder of the weight version, so that old versions
are collected like all stored keys and values, and ``layout``, which stands for how the engine lays
a block out in memory. The header in each object says the rest, and is checked when it is read.
"""

from __future__ import annotations

import hashlib

from prefix_cache.entry import Header
from prefix_cache.keys import KvIdentity, version_prefix

_LAYOUT_BYTES = 6


def layout_name(*facts: object) -> str:
    """Instances that agree on all ``facts`` can read each other's blocks."""
    return hashlib.blake2b(repr(facts).encode(), digest_size=_LAYOUT_BYTES).hexdigest()


def block_name(identity: KvIdentity, layout: str, block: bytes) -> str:
    """``block``: the engine's hash."""
    return f"{version_prefix(identity.job, identity.version)}/vllm-{layout}-{block.hex()}"


def block_header(identity: KvIdentity, layout: str, block: bytes, num_bytes: int) -> Header:
    """Of the object of that name, which holds ``num_bytes`` as the engine has them in memory."""
    return Header(f"{layout}-{block.hex()}", identity, [num_bytes], "uint8")
