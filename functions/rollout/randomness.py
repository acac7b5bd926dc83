"""The counter-based uniform variates of ``rlhfless.seeds``, for whole stretches of positions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Elementwise ``rlhfless.seeds.splitmix64``; array arithmetic wraps modulo 2**64."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


class Uniforms:
    """``rlhfless.seeds.uniform(seed, position)`` by the row; the mixed positions are kept."""

    def __init__(self) -> None:
        self._mixed = splitmix64(np.arange(1024, dtype=np.uint64))

    def row(self, seed: int, start: int, stop: int) -> NDArray[np.float32]:
        """The variates of positions ``[start, stop)`` of one sample (24 bits: exact)."""
        if stop > len(self._mixed):
            self._mixed = splitmix64(np.arange(2 * stop, dtype=np.uint64))
        bits = splitmix64(self._mixed[start:stop] ^ np.uint64(seed)) >> np.uint64(40)
        return bits.astype(np.float32) * np.float32(2**-24)
