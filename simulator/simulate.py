"""A job in simulation: the real orchestrator on virtual time, on a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlhfless.spec import JobSpec
from simulator.cluster import Cluster
from simulator.result import Simulation
from simulator.scenario import Scenario

Progress = Callable[[int, int], None]
"""Told (steps simulated, steps to simulate)."""


@dataclass(frozen=True)
class Options:
    """``max_steps``: simulate no more steps than so many, spread over the job; None: all of
    them."""

    seed: int = 0
    max_steps: int | None = None


def simulate(
    spec: JobSpec,
    cluster: Cluster,
    scenario: Scenario,
    *,
    strategy: str = "rlhfless",
    options: Options = Options(),
    progress: Progress | None = None,
) -> Simulation:
    """Run ``spec`` (whose switches say how, see ``simulator.strategies``) on ``cluster``."""
    raise NotImplementedError
