"""What a simulation found: the times, the accelerator-seconds and the money of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.ledger import Phase
from rlhfless.messages import FunctionName


@dataclass(frozen=True)
class StepFound:
    """A step that was simulated, counted from 1. ``stands_for``: steps of the job, itself included,
    that it speaks for (1 where every step was simulated). Seconds; ``tokens``: of its responses.

    ``rollout_s``, ``scoring_s`` (what scoring takes beyond the rollout) and ``train_s`` add up to
    less than ``seconds``, by what the controller and weights take.
    """

    step: int
    stands_for: float
    seconds: float
    rollout_s: float
    scoring_s: float
    train_s: float
    actors: int
    tokens: int
    prompt_tokens: int
    longest: int
    moved: int
    metrics: Mapping[str, float]
    plan: Mapping[str, Any]


@dataclass(frozen=True)
class Use:
    """What a function used over the whole job. Accelerator-seconds by phase: an instance of four
    accelerators that is held for a second counts four. A function on the host's CPUs has 0
    accelerators and counts its instances instead. ``usd``: as the cluster's mix of on-demand and
    spot costs; None where a price is unknown."""

    accelerators: int
    busy_s: float = 0.0
    idle_s: float = 0.0
    cold_s: float = 0.0
    usd: float | None = 0.0
    usd_on_demand: float | None = 0.0
    """If every second had been on demand."""
    usd_spot: float | None = 0.0
    """If every second had been on spot."""

    @property
    def held_s(self) -> float:
        return self.busy_s + self.idle_s + self.cold_s


@dataclass(frozen=True)
class InstanceSpan:
    """One stretch of an instance's life for the Gantt chart, ``[start_s, end_s)``."""

    instance: str
    function: FunctionName
    pool: str
    """Where it ran; empty: on a host's CPUs."""
    spot: bool
    accelerators: int
    phase: Phase
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Simulation:
    """A job on a cluster under a strategy.

    ``seconds`` and all that is counted are of the whole job: where ``simulated`` speaks for more
    steps than it holds, they are extrapolated. ``spans`` cover ``window_s`` (seconds of the
    simulation's clock), some typical steps. ``assumptions``: what was not known and taken for
    granted, in words. ``usage`` leaves out functions the job does not use.
    """

    job: str
    cluster: str
    strategy: str
    seed: int
    steps: int
    samples_per_step: int
    simulated: tuple[StepFound, ...]
    seconds: float
    usage: Mapping[FunctionName, Use]
    tokens: float
    prompt_tokens: float
    preemptions: float
    spans: tuple[InstanceSpan, ...]
    window_s: tuple[float, float]
    assumptions: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    """The job spec as it was run, resolved."""

    @property
    def held_s(self) -> float:
        """Accelerator-seconds."""
        return sum(use.held_s for use in self.usage.values() if use.accelerators)

    @property
    def busy_s(self) -> float:
        return sum(use.busy_s for use in self.usage.values() if use.accelerators)

    @property
    def idle_fraction(self) -> float:
        """Share of the held accelerator-seconds in which nothing was computed, cold ones left
        out."""
        idle = sum(use.idle_s for use in self.usage.values() if use.accelerators)
        return idle / self.held_s if self.held_s else 0.0

    @property
    def usd(self) -> float | None:
        return _total([use.usd for use in self.usage.values()])

    @property
    def usd_on_demand(self) -> float | None:
        return _total([use.usd_on_demand for use in self.usage.values()])

    @property
    def usd_spot(self) -> float | None:
        return _total([use.usd_spot for use in self.usage.values()])

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return self.seconds / self.steps

    @property
    def tokens_per_s(self) -> float:
        """Response tokens a second of the job."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def step_quantile(self, q: float) -> float:
        """Seconds of a step at quantile ``q``, each simulated step weighted by what it stands
        for."""
        ranked = sorted((step.seconds, step.stands_for) for step in self.simulated)
        reached, wanted = 0.0, q * sum(weight for _, weight in ranked)
        for seconds, weight in ranked:
            reached += weight
            if reached >= wanted:
                return seconds
        return ranked[-1][0]


def _total(values: list[float | None]) -> float | None:
    """None where one is unknown, which is not 0."""
    return None if any(each is None for each in values) else sum(each or 0.0 for each in values)
