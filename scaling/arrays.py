"""Types of the arrays that policies compute with, and what numpy's stubs do not say of them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

DENSE = 16
"""A table over two kinds of things is laid out whole where it has at most so many cells for each
entry that is not nothing; where it is emptier, entry by entry."""


def sums_by(places: Ints, values: Floats, size: int) -> Floats:
    """``[size]``: sums of ``values`` with the same place."""
    return np.asarray(np.bincount(places, values, minlength=size), np.float64)


def pairs(actor: Ints, kind: Ints, kinds: int) -> tuple[Ints, Ints, Ints]:
    """``[K]`` each: the actors and kinds that occur together, by actor, and how often."""
    keys = actor * kinds + kind
    if keys.max(initial=0) <= DENSE * len(keys):
        table = np.bincount(keys)
        found = np.flatnonzero(table)
        number = table[found]
    else:
        found, number = np.unique(keys, return_counts=True)
    return found // kinds, found % kinds, number
