"""Random numbers that are a function of what they are for, not of when they are asked for.

Each is a hash (SplitMix64) of a seed and some integer keys, so the length of sample 3 of a prompt
is the same whoever asks first, in whatever order, alone or in an array of millions.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Keys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key_of(text: str) -> int:
    """A stable 64-bit key of a text, such as a prompt."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def hashed(seed: int, *keys: Any) -> Keys:
    """What ``uniform`` and ``normal`` draw from: ``keys`` are integers or arrays of them, which
    broadcast."""
    state = _mix(np.asarray(seed % 2**64, dtype=np.uint64))
    for key in keys:
        state = _mix(state ^ _mix(np.asarray(key).astype(np.uint64)))
    return state


def uniform(state: Keys, stream: int) -> Array:
    """In (0, 1); streams are independent of each other."""
    with np.errstate(over="ignore"):
        drawn = _mix(state + np.uint64(stream) * _GOLDEN)
    return (np.asarray(drawn >> np.uint64(11), dtype=np.float64) + 0.5) / 2.0**53


def normal(state: Keys, stream: int) -> Array:
    """Standard normal, by Box and Muller from the streams ``2 stream`` and ``2 stream + 1``."""
    radius = np.sqrt(-2 * np.log(uniform(state, 2 * stream)))
    result: Array = radius * np.cos(2 * np.pi * uniform(state, 2 * stream + 1))
    return result


def _mix(x: Keys) -> Keys:
    """SplitMix64 (Steele, Lea, Flood 2014); arithmetic wraps around."""
    with np.errstate(over="ignore"):
        x = x + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Keys = x ^ (x >> np.uint64(31))
    return mixed
