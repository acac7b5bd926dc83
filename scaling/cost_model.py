"""Seconds of calls, learned online from the calls that ran.

Every kind of call is linear in a few features (``PRIORS``), summed over the call:

| kind | features | source of the numbers |
|---|---|---|
| decode | iterations, generated tokens, context tokens (attended to, over all rows) | RolloutDone |
| prefill | calls, prompt tokens run through the model | RolloutDone, PrefillDone |
| training | calls, tokens of the batch | TrainDone |
| weights_pull, kv_load, kv_publish | calls, bytes | RolloutDone, PrefillDone |

An iteration has a fixed part (launches, weights read once), a part for every row and one for every
token a row attends to; over a call these sum to the three features. Coefficients come from
``scaling.regression``: not negative, robust, and near the prior's proportions where the calls
cannot tell them apart. Cold starts are medians by function. Worked number: 60 iterations of
1.5 ms, 2,000 tokens of 20 us and 100,000 context tokens of 0.1 us are 0.09 + 0.04 + 0.01 = 0.14 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, TypeAlias, cast

import msgspec

from scaling import regression

Kind: TypeAlias = Literal["decode", "prefill", "training", "weights_pull", "kv_load", "kv_publish"]
PRIORS: dict[Kind, tuple[float, ...]] = {
    "decode": (5e-3, 5e-5, 2e-8),
    "prefill": (5e-3, 5e-5),
    "training": (0.5, 2e-4),
    "weights_pull": (0.01, 1e-9),
    "kv_load": (2e-3, 1e-9),
    "kv_publish": (2e-3, 2e-9),
}
"""Seconds per unit of each feature before anything was measured: a small model on a few CPU cores,
files at 1 GB/s (0.5 GB/s written). Only their proportions matter once a call was measured."""
PRIOR_COLD_START_S = 5.0
"""A process that imports its libraries; pods with a GPU take minutes, and are measured."""
KEEP = 128
"""Calls of a kind to fit to: the last eight steps of sixteen actors."""
KEEP_COLD_STARTS = 16


class Observation(msgspec.Struct, frozen=True):
    """A measured call: its features in the order of ``PRIORS``, and its seconds."""

    kind: Kind
    features: tuple[float, ...]
    seconds: float


class CostState(msgspec.Struct, frozen=True):
    """Recent observations by kind, oldest first, and recent cold starts by function (seconds)."""

    calls: dict[str, list[Observation]] = {}
    cold_starts: dict[str, list[float]] = {}


@dataclass(frozen=True)
class CostModel:
    """Seconds per unit of each feature, by kind; ``measured`` names the kinds that were fitted."""

    coefficients: Mapping[Kind, tuple[float, ...]] = field(default_factory=lambda: dict(PRIORS))
    cold_starts: Mapping[str, float] = field(default_factory=dict)
    measured: frozenset[str] = frozenset()

    def seconds(self, kind: Kind, *features: float) -> float:
        """Predicted seconds of a call with these features."""
        return sum(c * x for c, x in zip(self.coefficients[kind], features, strict=True))

    def decode_s(self, iterations: float, tokens: float, context_tokens: float) -> float:
        return self.seconds("decode", iterations, tokens, context_tokens)

    def prefill_s(self, tokens: float, calls: float = 1) -> float:
        return self.seconds("prefill", calls, tokens)

    def training_s(self, tokens: float) -> float:
        return self.seconds("training", 1, tokens)

    def weights_pull_s(self, num_bytes: float) -> float:
        return self.seconds("weights_pull", 1, num_bytes)

    def kv_load_s(self, num_bytes: float) -> float:
        return self.seconds("kv_load", 1, num_bytes)

    def kv_publish_s(self, num_bytes: float) -> float:
        return self.seconds("kv_publish", 1, num_bytes)

    def cold_start_s(self, function: str) -> float:
        """Until a new instance is ready, and what its first call loads before it works."""
        load_s = self.cold_starts.get(f"{function} load", 0.0)
        return self.cold_starts.get(function, PRIOR_COLD_START_S) + load_s


def decode(iterations: int, tokens: int, context_tokens: int, seconds: float) -> Observation:
    return Observation("decode", (iterations, tokens, context_tokens), seconds)


def prefill(tokens: int, seconds: float) -> Observation:
    return Observation("prefill", (1, tokens), seconds)


def training(tokens: int, seconds: float) -> Observation:
    return Observation("training", (1, tokens), seconds)


def weights_pull(num_bytes: int, seconds: float) -> Observation:
    return Observation("weights_pull", (1, num_bytes), seconds)


def kv_load(num_bytes: int, seconds: float, loads: int = 1) -> Observation:
    """``loads``: segments that were loaded, each at a price of its own."""
    return Observation("kv_load", (loads, num_bytes), seconds)


def kv_publish(num_bytes: int, seconds: float) -> Observation:
    return Observation("kv_publish", (1, num_bytes), seconds)


def ahead_share(minibatches: int, passes: int, *, gradients: bool = True) -> float:
    """Of an update's work, the share that can be done before its batch is complete
    (``training.overlap``): the first optimizer step's gradients (where groups' can be summed at
    all, ``gradients``), and the old log-probs of samples that come later.

    A token's gradients cost three forward passes, its old log-probs one; those of the first
    optimizer step's samples come with their gradients. Worked number: 4 minibatches, 1 pass:
    3/4 + 3/4 of 3 + 3/4 forward passes, 0.4.
    """
    later = 1 - 1 / minibatches
    first = 3 / minibatches if gradients else 0.0
    return (first + later) / (3 * passes + later)


def observe(
    state: CostState,
    calls: Iterable[Observation] = (),
    cold_starts: Iterable[tuple[str, float]] = (),
) -> CostState:
    """The state with these calls, and (function, seconds) of instances that started, added.

    Calls that did nothing (no work in any feature but the call itself, or no time) are left out.
    """
    kept = {kind: list(old) for kind, old in state.calls.items()}
    for call in calls:
        if _did_something(call):
            kept.setdefault(call.kind, []).append(call)
    starts = {function: list(old) for function, old in state.cold_starts.items()}
    for function, seconds in cold_starts:
        starts.setdefault(function, []).append(seconds)
    return CostState(
        calls={kind: recent[-KEEP:] for kind, recent in kept.items()},
        cold_starts={name: recent[-KEEP_COLD_STARTS:] for name, recent in starts.items()},
    )


def fit(state: CostState) -> CostModel:
    """The model that the observations say; priors for what was not observed."""
    coefficients = dict(PRIORS)
    for name, calls in state.calls.items():
        kind = cast(Kind, name)
        coefficients[kind] = regression.fit(
            [call.features for call in calls], [call.seconds for call in calls], PRIORS[kind]
        )
    return CostModel(
        coefficients=coefficients,
        cold_starts={name: median(seconds) for name, seconds in state.cold_starts.items()},
        measured=frozenset(state.calls),
    )


def errors(model: CostModel, calls: Iterable[Observation]) -> dict[str, float]:
    """Median relative errors of a model fitted before it saw ``calls``: ``cost_model/error`` over
    all calls of measured kinds, and ``cost_model/<kind>_error``."""
    by_kind: dict[str, list[float]] = {}
    for call in calls:
        if call.kind in model.measured and _did_something(call):
            predicted = model.seconds(call.kind, *call.features)
            by_kind.setdefault(call.kind, []).append(abs(predicted - call.seconds) / call.seconds)
    if not by_kind:
        return {}
    metrics = {f"cost_model/{kind}_error": median(each) for kind, each in by_kind.items()}
    metrics["cost_model/error"] = median(error for each in by_kind.values() for error in each)
    return metrics


def _did_something(call: Observation) -> bool:
    work = call.features if call.kind == "decode" else call.features[1:]
    return call.seconds > 0 and any(x > 0 for x in work)
