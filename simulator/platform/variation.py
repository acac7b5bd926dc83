"""Instances and calls that are slower or faster than the cost model says."""

from __future__ import annotations

import math
import random

from rlhfless.seeds import derive
from simulator.cluster_file import VariationSpec


class Variation:
    """Factors on times, from a seed and a name alone."""

    def __init__(self, spec: VariationSpec, seed: int) -> None:
        self._spec = spec
        self._seed = seed

    def of_instance(self, name: str) -> float:
        """A straggler's, or 1."""
        rng = random.Random(derive(self._seed, "instance", name))
        return self._spec.straggler_factor if rng.random() < self._spec.straggler_share else 1.0

    def of_call(self, call: str) -> float:
        """Lognormal with median 1."""
        if not self._spec.noise:
            return 1.0
        rng = random.Random(derive(self._seed, "call", call))
        return math.exp(self._spec.noise * rng.gauss(0.0, 1.0))
