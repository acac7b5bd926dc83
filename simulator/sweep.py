"""A job simulated over and over with other values of some fields, and what is best among them.

``rollout.max_instances=4:64:4`` is a range with both ends, ``objective.time_weight=0,0.5,1`` a
list; fields are those of the job spec by their dotted paths, and those of the cluster file behind
``cluster.``. Several axes make a grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_file import parse_spec, set_field, yaml_value
from simulator.cluster import Cluster, ClusterFile
from simulator.frontier import frontier, knee
from simulator.result import Simulation
from simulator.strategies import apply

MAX_POINTS = 2_000
CLUSTER = "cluster."

Run = Callable[[JobSpec, Cluster, str], Simulation]
"""Simulates a job, which a strategy (named) was applied to, on a cluster."""


@dataclass(frozen=True)
class Axis:
    """A field and its values, e.g. of ``rollout.max_instances`` or ``cluster.pools.gpus.nodes``."""

    path: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class SweepPoint:
    """``values``: of the swept fields, by path."""

    strategy: str
    values: Mapping[str, Any]
    simulation: Simulation


@dataclass(frozen=True)
class Impossible:
    """A combination that cannot be run, and why."""

    strategy: str
    values: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Sweep:
    """``frontier``: indices of ``points`` that are the best for their time or cost, the fastest
    first; ``knee``: the one of them where more speed begins to cost much, None without one.
    ``in_usd``: cost is dollars; else, where a price is unknown, accelerator-seconds held."""

    axes: tuple[Axis, ...]
    points: tuple[SweepPoint, ...]
    impossible: tuple[Impossible, ...]
    in_usd: bool
    frontier: tuple[int, ...]
    knee: int | None

    def time_and_cost(self, index: int) -> tuple[float, float]:
        """Of the whole job: seconds, and dollars or accelerator-seconds."""
        simulation = self.points[index].simulation
        usd = simulation.usd if self.in_usd else None
        return simulation.seconds, simulation.held_s if usd is None else usd


def parse_axis(text: str) -> Axis:
    """``path=first:last:step`` or ``path=value,value,...``. Raises ``UserError``."""
    path, separator, values = (part.strip() for part in text.partition("="))
    asked = f"--sweep {text}"
    if not separator or not all(path.split(".")) or not values:
        raise UserError(
            f"{asked}: write field=first:last:step or field=value,value,...",
            hint="e.g. --sweep rollout.max_instances=4:64:4",
        )
    if path.startswith("scheduling.strategy"):
        raise UserError(
            f"{asked}: strategies are compared by name",
            hint="e.g. --compare static,rlhfless",
        )
    if ":" in values:
        return Axis(path, _range(values, asked))
    found = tuple(yaml_value(value, asked) for value in values.split(","))
    return Axis(path, tuple(dict.fromkeys(found)))


def sweep(
    axes: Sequence[Axis],
    spec: JobSpec,
    cluster: ClusterFile,
    run: Run,
    *,
    strategies: Sequence[str] = ("rlhfless",),
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Sweep:
    """Run every combination of the axes' values under each strategy. ``progress``: told (done,
    total).

    Combinations that cannot work are listed with why; raises the first ``UserError`` if none can.
    """
    grid = [
        (strategy, dict(zip((axis.path for axis in axes), values, strict=True)))
        for strategy in strategies
        for values in itertools.product(*(axis.values for axis in axes))
    ]
    if len(grid) > MAX_POINTS:
        raise UserError(
            f"--sweep: {len(grid):,} combinations; at most {MAX_POINTS:,} are simulated"
        )
    points: list[SweepPoint] = []
    impossible: list[Impossible] = []
    first: UserError | None = None
    for number, (strategy, values) in enumerate(grid):
        progress(number, len(grid))
        try:
            job, machines = changed(spec, cluster, values)
            found = run(*apply(strategy, job, machines), strategy)
        except UserError as error:
            first = first or error
            impossible.append(Impossible(strategy, values, error.detail))
        else:
            points.append(SweepPoint(strategy, values, found))
    progress(len(grid), len(grid))
    if not points and first is not None:
        raise first
    return rank(axes, points, impossible)


def rank(
    axes: Sequence[Axis], points: Sequence[SweepPoint], impossible: Sequence[Impossible] = ()
) -> Sweep:
    """The sweep that ``points`` make, with their frontier and its knee."""
    in_usd = all(point.simulation.usd is not None for point in points)
    found = Sweep(tuple(axes), tuple(points), tuple(impossible), in_usd, (), None)
    at = [found.time_and_cost(index) for index in range(len(points))]
    best = frontier(at)
    place = knee([at[index] for index in best])
    chosen = None if place is None else best[place]
    return Sweep(found.axes, found.points, found.impossible, in_usd, best, chosen)


def changed(
    spec: JobSpec, cluster: ClusterFile, values: Mapping[str, Any]
) -> tuple[JobSpec, Cluster]:
    """Job and cluster with fields changed by their paths. Raises ``UserError`` naming the field."""
    raw = spec.model_dump()
    for path, value in values.items():
        if not path.startswith(CLUSTER):
            set_field(raw, path, value, f"--sweep {path}={value}")
    of_cluster = {
        path.removeprefix(CLUSTER): value
        for path, value in values.items()
        if path.startswith(CLUSTER)
    }
    return parse_spec(raw), cluster.cluster(of_cluster)


def _range(text: str, asked: str) -> tuple[int | float, ...]:
    """Exact in decimals: 0:1:0.1 has the 11 values that a person expects."""
    try:
        numbers = [Decimal(part.strip()) for part in text.split(":")]
    except InvalidOperation:
        numbers = []
    if len(numbers) == 2:
        numbers.append(Decimal(1))
    if len(numbers) != 3 or not all(number.is_finite() for number in numbers):
        raise UserError(f"{asked}: write a range as first:last:step, e.g. 4:64:4")
    first, last, step = numbers
    if step <= 0 or last < first:
        raise UserError(f"{asked}: a range goes up, from first to last by a step above 0")
    count = int((last - first) / step) + 1
    if count > MAX_POINTS:
        raise UserError(f"{asked}: {count:,} values; at most {MAX_POINTS:,} are simulated")
    values = [first + step * number for number in range(count)]
    whole = all(number == number.to_integral_value() for number in numbers)
    return tuple(int(value) if whole else float(value) for value in values)
