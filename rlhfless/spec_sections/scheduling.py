"""How a job is scheduled, what for, and within what limits."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rlhfless.spec_sections.base import Fraction, Positive, Section

Assignment = Literal["random", "balanced", "sorted", "group_affine", "auto"]

_STATIC: dict[str, Any] = {
    "dedup_prefill": False,
    "prefix_cache": False,
    "predict_lengths": False,
    "scale_actors": False,
    "assignment": "random",
    "early_release": False,
    "migrate": False,
    "stream_scoring": False,
}
_RLHFLESS: dict[str, Any] = dict.fromkeys(_STATIC, True) | {"assignment": "auto"}


class SchedulingSpec(Section):
    """How a rollout is planned and watched over: each technique has a switch.

    ``static`` has them all off, as a serverful framework would run the job; ``rlhfless`` has them
    all on; with ``custom`` they are what you set, on where you do not.
    """

    strategy: Literal["rlhfless", "static", "custom"] = "rlhfless"
    dedup_prefill: bool = True
    """Prefill a prompt once for its whole group; off: once for every sample."""
    prefix_cache: bool = True
    """Share keys and values of prompts between instances where loading beats computing; needs
    ``dedup_prefill``."""
    predict_lengths: bool = True
    """Plan with predicted response lengths; off: every response may be as long as any other."""
    scale_actors: bool = True
    """Choose the number of actors by ``objective``; off: as many as ``rollout.max_instances``."""
    assignment: Assignment = "auto"
    """Who generates what. ``random``: equal shares; ``balanced``: equal predicted work;
    ``sorted``: similar lengths together; ``group_affine``: a prompt's samples together; ``auto``:
    whichever of the last three the cost model likes best."""
    early_release: bool = True
    """Let an instance go when nothing is left for it and keeping it would cost more; off: hold
    every instance, ``idle_timeout_s`` or not."""
    migrate: bool = True
    """Move samples between actors while they stream, when the cost model says it pays."""
    stream_scoring: bool = True
    """Score samples as they finish; off: after the last."""
    block_tokens: Positive = 16
    """Shared prefixes are cut at multiples of so many tokens."""
    kv_store_mb: Positive = 4096
    """Bound on the stored keys and values of a job."""

    @model_validator(mode="before")
    @classmethod
    def _switches(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        strategy = given.get("strategy", "rlhfless")
        fixed = {"static": _STATIC, "rlhfless": _RLHFLESS}.get(strategy, {})
        for name, value in fixed.items():
            if given.get(name, value) != value:
                raise ValueError(
                    f"{name} is {value} under strategy {strategy}; to set it, use strategy: custom"
                )
        return given | fixed


class ObjectiveSpec(Section):
    """What the controller minimises when it chooses the number of actors."""

    time_weight: Fraction = 0.5
    """λ: 1 = step time only, 0 = function-seconds only."""
    max_slowdown: float | None = Field(default=1.0, gt=0)
    """A plan may take so many times what static scheduling is predicted to take; null: no bound."""


class BudgetSpec(Section):
    """Limits, checked after every step."""

    max_function_seconds: float | None = Field(default=None, gt=0)
    max_usd: float | None = Field(default=None, gt=0)
    """Needs a price for every function in use."""
    on_exceed: Literal["pause", "fail"] = "pause"
