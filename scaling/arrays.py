"""Types of the arrays that policies compute with, and what numpy's stubs do not say of them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


def sums_by(places: Ints, values: Floats, size: int) -> Floats:
    """``[size]``: sums of ``values`` with the same place."""
    return np.asarray(np.bincount(places, values, minlength=size), np.float64)
