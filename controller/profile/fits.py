"""How well coefficients say what calls took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from controller.timeline import CallSpan, Timeline
from rlhfless.measurements import Linear, Measurements
from scaling import cost_model
from scaling.cost_model import Kind, Observation

UNITS: dict[str, tuple[str, ...]] = {
    "decode": ("iteration", "row", "context token"),
    "prefill": ("pass", "token"),
    "training": ("call", "token"),
    "gradients": ("call", "token"),
    "weights_pull": ("call", "byte"),
    "kv_load": ("segment", "byte"),
    "kv_publish": ("call", "byte"),
    "reward": ("call", "sample"),
    "reference": ("call", "token"),
}
"""What each coefficient is of."""


@dataclass(frozen=True)
class Fit:
    """Of one kind of call. ``error``: median of the relative errors over the ``calls`` it was
    fitted to."""

    kind: str
    coefficients: tuple[float, ...]
    calls: int
    error: float

    @property
    def units(self) -> tuple[str, ...]:
        return UNITS[self.kind]


def fits(
    measured: Measurements, observations: Sequence[Observation], timeline: Timeline
) -> list[Fit]:
    """In the order of ``UNITS``; kinds without calls are left out."""
    rollout = measured.rollout
    linear: dict[Kind, tuple[float, ...] | None] = {
        "decode": rollout.decode,
        "prefill": rollout.prefill,
        "training": measured.training.update,
        "weights_pull": rollout.weights_pull,
        "kv_load": rollout.kv_load,
        "kv_publish": rollout.kv_publish,
    }
    found = []
    for kind, coefficients in linear.items():
        calls = [call for call in observations if call.kind == kind and call.seconds > 0]
        calls = [call for call in calls if any(call.features[1:])]
        if coefficients is not None and calls:
            pairs = [(_dot(coefficients, call.features), call.seconds) for call in calls]
            found.append(Fit(kind, coefficients, len(pairs), _error(pairs)))
    by_work: dict[str, tuple[Linear | None, Iterable[CallSpan]]] = {
        "gradients": (measured.training.gradients, timeline.worked["training"]),
        "reward": (measured.reward, timeline.worked["reward"]),
        "reference": (measured.reference, timeline.worked["reference"]),
    }
    for name, (pair, spans) in by_work.items():
        if pair is not None:
            pairs = [
                (_dot(pair, (1.0, span.work)), span.busy_s - span.load_s)
                for span in spans
                if span.work > 0
            ]
            found.append(Fit(name, pair, len(pairs), _error(pairs)))
    order = list(UNITS)
    return sorted(found, key=lambda fit: order.index(fit.kind))


def _error(pairs: Sequence[tuple[float, float]]) -> float:
    """``pairs``: (predicted, measured) seconds."""
    return median(abs(said - took) / took for said, took in pairs if took > 0)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


assert set(cost_model.PRIORS) <= set(UNITS)
