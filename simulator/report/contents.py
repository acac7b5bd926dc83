"""What a report tells: simulations side by side, the first of them being what others are compared
with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controller.ledger import Phase
from rlhfless.messages import FUNCTION_NAMES, FunctionName
from simulator.budget import BudgetAnswer
from simulator.cluster import Cluster
from simulator.report.units import several
from simulator.result import Simulation, Use
from simulator.sweep import Sweep

PHASES: tuple[Phase, ...] = ("busy", "idle", "cold")
"""In the order in which they are shown."""


@dataclass(frozen=True)
class Comparison:
    """A simulation against the first. Savings are shares, negative where it takes more; None where
    a price is unknown or there was nothing to save."""

    speedup: float
    held_saved: float | None
    usd_saved: float | None


@dataclass(frozen=True)
class Report:
    """``simulations``: one or more, of the same job on the same ``cluster`` (None: not told).
    ``sweep``: what they were chosen from, if they were; ``budget``: the answer they belong to.
    ``notes``: where job and cluster do not go together, in words."""

    simulations: tuple[Simulation, ...]
    cluster: Cluster | None = None
    sweep: Sweep | None = None
    budget: BudgetAnswer | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.simulations, "a report of nothing"

    @property
    def noun(self) -> str:
        """What an accelerator of the cluster is called."""
        if self.cluster is None:
            return "GPU"
        return "core" if self.on_cpu else "GPU"

    @property
    def on_cpu(self) -> bool:
        pools = self.cluster.pools.values() if self.cluster is not None else ()
        return bool(pools) and all(pool.accelerator_name.startswith("cpu") for pool in pools)


def label(sweep: Sweep, index: int) -> str:
    """``8`` of ``rollout.max_instances``, ``rlhfless, 8``, ``8, 0.5``."""
    point = sweep.points[index]
    values = [_value(value) for value in point.values.values()]
    return ", ".join([point.strategy, *values] if _by_strategy(sweep) else values)


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def told_apart(sweep: Sweep) -> str:
    """What ``label`` consists of."""
    fields = [axis.path for axis in sweep.axes]
    return ", ".join(["strategy", *fields] if _by_strategy(sweep) else fields)


def _by_strategy(sweep: Sweep) -> bool:
    """Whether strategies tell its points apart."""
    return len({each.strategy for each in sweep.points}) > 1 or not sweep.axes


def compare(one: Simulation, first: Simulation) -> Comparison:
    return Comparison(
        speedup=first.seconds / one.seconds if one.seconds else 0.0,
        held_saved=_saved(one.held_s, first.held_s),
        usd_saved=_saved(one.usd, first.usd),
    )


def _saved(value: float | None, of: float | None) -> float | None:
    return None if value is None or not of else 1 - value / of


def whole(simulation: Simulation) -> Use:
    """All accelerators together: what functions on the host's CPUs take is not in it, but in the
    dollars."""
    uses = [use for use in simulation.usage.values() if use.accelerators]
    return Use(
        accelerators=max((use.accelerators for use in uses), default=0),
        busy_s=sum(use.busy_s for use in uses),
        idle_s=sum(use.idle_s for use in uses),
        cold_s=sum(use.cold_s for use in uses),
        usd=simulation.usd,
        usd_on_demand=simulation.usd_on_demand,
        usd_spot=simulation.usd_spot,
    )


def extent(simulation: Simulation) -> str:
    """``100 steps of 256 samples, seed 7; 12 simulated, the rest extrapolated``."""
    steps = several(simulation.steps, "step")
    told = f"{steps} of {several(simulation.samples_per_step, 'sample')}, seed {simulation.seed}"
    simulated = len(simulation.simulated)
    if simulated < simulation.steps:
        return f"{told}; {simulated:,} simulated, the rest extrapolated"
    return f"{told}; all simulated"


def step_s(simulation: Simulation) -> float:
    """Mean seconds of a step."""
    steps = sum(step.stands_for for step in simulation.simulated)
    return sum(step.seconds * step.stands_for for step in simulation.simulated) / steps


def outside_s(simulation: Simulation) -> float:
    """Seconds of the job before, between and after its steps: evaluations, starts, the export."""
    inside = sum(step.seconds * step.stands_for for step in simulation.simulated)
    return max(0.0, simulation.seconds - inside)


def by_function(simulation: Simulation) -> dict[FunctionName, Use]:
    """Those on accelerators first."""
    known = [name for name in FUNCTION_NAMES if name in simulation.usage]
    known.sort(key=lambda name: not simulation.usage[name].accelerators)
    return {name: simulation.usage[name] for name in known}


def actors(simulation: Simulation) -> str:
    """``4``, or ``2 to 8``."""
    found = [step.actors for step in simulation.simulated]
    low, high = min(found, default=0), max(found, default=0)
    return str(low) if low == high else f"{low} to {high}"


def split(simulation: Simulation) -> dict[str, float]:
    """Shares of the step time: ``rollout``, ``scoring``, ``training`` and ``other``."""
    seconds = dict.fromkeys(("rollout", "scoring", "training"), 0.0)
    total = 0.0
    for step in simulation.simulated:
        seconds["rollout"] += step.rollout_s * step.stands_for
        seconds["scoring"] += step.scoring_s * step.stands_for
        seconds["training"] += step.train_s * step.stands_for
        total += step.seconds * step.stands_for
    if total <= 0:
        return {}
    shares = {part: each / total for part, each in seconds.items()}
    return shares | {"other": max(0.0, 1 - sum(shares.values()))}
