"""Which samples of a batch go into which optimizer step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from functions.packing import Indices
from rlhfless.seeds import derive


def minibatches(groups: NDArray[np.int32], count: int, passes: int, seed: int) -> Iterator[Indices]:
    """The samples of each optimizer step: ``passes`` times ``count`` parts of like size.

    Groups are shuffled anew for each pass and laid end to end before the cut, so the responses to a
    prompt mostly stay together (which lets them share its computation); a cut may divide a group.
    Follows from ``groups`` ``[N]`` and the seed alone, so it is known before there are responses.
    """
    _, index = np.unique(groups, return_inverse=True)
    for number in range(passes):
        rank = np.random.default_rng(derive(seed, "pass", number)).permutation(index.max() + 1)
        yield from np.array_split(np.argsort(rank[index], kind="stable"), count)
