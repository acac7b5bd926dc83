"""Keys of stored keys and values (KV): which model computed them, and for which tokens.

A prompt is cut into segments. The key of a segment is a hash over the key of the segment before it
(of the model's identity for the first) and its own tokens, so it stands for the whole prefix and
for where that was cut. Whoever knows the model, the prompt and the cuts knows all names; there is
no index. Nothing of another model, weight version, adapter, dtype or layout can have the same key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np

FORMAT = 1
"""Of stored entries and of what is hashed; a change of either makes all old entries invisible."""

_KEY_BYTES = 20


class KvIdentity(msgspec.Struct, frozen=True):
    """What keys and values depend on besides tokens. ``adapter`` names one applied on top of the
    version ("" for none; versions that are adapters are told apart by their number)."""

    path: str
    job: str
    version: int
    dtype: str
    adapter: str = ""
    format: int = FORMAT

    def root(self) -> str:
        """The key of the empty prefix."""
        return _hash(b"kv-model", msgspec.msgpack.encode(msgspec.structs.astuple(self)))


def segment_keys(
    identity: KvIdentity, tokens: Sequence[int], cuts: Sequence[int]
) -> tuple[str, ...]:
    """One key for each segment ``tokens[cuts[i - 1]:cuts[i]]``; ``cuts`` ascend from above 0."""
    data = np.asarray(tokens[: cuts[-1] if cuts else 0], dtype="<i8")
    keys: list[str] = []
    parent, start = identity.root(), 0
    for cut in cuts:
        if not start < cut <= len(data):
            raise ValueError(f"cuts {list(cuts)} do not ascend within {len(tokens)} tokens")
        parent = _hash(b"kv-segment", bytes.fromhex(parent) + data[start:cut].tobytes())
        keys.append(parent)
        start = cut
    return tuple(keys)


def version_prefix(job: str, version: int) -> str:
    """The folder of all entries of a weight version."""
    return f"kv/{job}/v{version:06d}"


def object_name(identity: KvIdentity, key: str) -> str:
    return f"{version_prefix(identity.job, identity.version)}/{key}"


def _hash(kind: bytes, data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_KEY_BYTES, person=kind).hexdigest()
