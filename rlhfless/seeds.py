"""Randomness that depends on names, not on order.

A sampled token is a function of (sample seed, position) and the model's distribution alone. So a
sample that is continued by another instance, in another batch, after a crash, is the sample it
would have been. ``splitmix64`` (Steele, Lea, Flood 2014) is the counter-based mixer; the rollout
engine carries a vectorised twin of ``uniform`` that a test holds equal to this one.
"""

from __future__ import annotations

import hashlib

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(x: int) -> int:
    """Mix 64 bits; a bijection on ``[0, 2**64)``."""
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def derive(*parts: int | str) -> int:
    """A seed in ``[0, 2**63)`` from any names, e.g. ``derive(job_seed, "step", 3, "sample", 7)``.

    63 bits, so that it fits a signed 64-bit tensor.
    """
    text = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def uniform(sample_seed: int, position: int) -> float:
    """The uniform variate in ``[0, 1)`` (24 bits) that decides token ``position`` of a sample.

    ``position`` counts response tokens from 0. 24 bits are exact in float32.
    """
    mixed = splitmix64(sample_seed ^ splitmix64(position))
    return (mixed >> 40) / float(1 << 24)
