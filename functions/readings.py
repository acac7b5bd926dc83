"""What a function's code can tell of itself beyond its frames, for Prometheus.

An object that has ``readings`` is asked for them whenever somebody scrapes, from any thread. So it
only counts; names, labels and text formats are for ``functions.metrics``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable


@dataclass(frozen=True)
class Reading:
    """One series, by its ``name`` (without ``rlhfless_``) and ``labels``.

    ``gauge``: ``value`` is what it is now. ``counter``: the sum since the instance began.
    ``summary``: that too, of ``count`` observations.
    """

    name: str
    text: str
    value: float
    kind: Literal["gauge", "counter", "summary"] = "gauge"
    count: int = 0
    labels: dict[str, str] = field(default_factory=dict)


@runtime_checkable
class Measured(Protocol):
    def readings(self) -> Sequence[Reading]:
        """Series of one name have one kind and the same labels."""
        ...
