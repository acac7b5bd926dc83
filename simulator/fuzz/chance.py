"""Faults by chance: which strike, decided by the seed, until their budget is spent."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from simulator.fuzz.trace import Trace


class Chance:
    """``rates``: chance of each kind of fault whenever it could happen. After ``budget`` faults
    nothing strikes any more, so a job that goes on trying must get through. ``counts``: what has
    struck."""

    def __init__(
        self, rng: random.Random, rates: Mapping[str, float], budget: int, trace: Trace
    ) -> None:
        self.rng = rng
        self.left = budget
        self.counts: Counter[str] = Counter()
        self._rates = rates
        self._trace = trace

    def strikes(self, kind: str, *where: object) -> bool:
        if self.left <= 0 or self.rng.random() >= self._rates.get(kind, 0.0):
            return False
        self._strike(kind, where)
        return True

    def strikes_in(self, kind: str, seconds: float, *where: object) -> bool:
        """As ``strikes``, where the rate is per second, over so many seconds."""
        if self.left <= 0 or self.rng.random() >= self._rates.get(kind, 0.0) * seconds:
            return False
        self._strike(kind, where)
        return True

    def rate(self, kind: str) -> float:
        return self._rates.get(kind, 0.0) if self.left > 0 else 0.0

    def seconds(self, mean_s: float) -> float:
        """Of a delay; short ones are common, long ones happen."""
        return self.rng.expovariate(1 / mean_s)

    def _strike(self, kind: str, where: tuple[object, ...]) -> None:
        self.left -= 1
        self.counts[kind] += 1
        self._trace.note(f"FAULT {kind}", *where)
