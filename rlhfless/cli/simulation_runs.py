"""What ``rlhfless simulate`` simulates: one way of running a job, several, a sweep, a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhfless.cli.simulation_files import Bar
from rlhfless.spec import JobSpec
from simulator.budget import answer_budget
from simulator.cluster import Cluster, ClusterFile
from simulator.model_shape import load_shape
from simulator.report.contents import Report, label, told_apart
from simulator.result import Simulation
from simulator.room import room_notes
from simulator.scenario_file import Scenarios
from simulator.simulate import Options, Progress, simulate
from simulator.strategies import apply
from simulator.sweep import Axis, Sweep, SweepPoint, changed, rank, sweep


@dataclass(frozen=True)
class Runner:
    """Simulates the job of the command line, changed or not. ``max_steps`` None: all of them."""

    spec: JobSpec
    cluster: ClusterFile
    scenarios: Scenarios
    max_steps: int | None

    def one(
        self, spec: JobSpec, cluster: Cluster, strategy: str, progress: Progress | None = None
    ) -> Simulation:
        return simulate(
            spec,
            cluster,
            self.scenarios.of(spec),
            strategy=strategy,
            options=Options(seed=spec.seed, max_steps=self.max_steps),
            progress=progress,
        )

    def without_spans(self, spec: JobSpec, cluster: Cluster, strategy: str) -> Simulation:
        """For many of which few are looked at: spans are the bulk of a simulation."""
        return replace(self.one(spec, cluster, strategy), spans=())


def compared(runner: Runner, names: Sequence[str], bar: Bar) -> Report:
    """Each strategy; without a name, the job as its file says. Three or more make a frontier."""
    cluster = runner.cluster.cluster()
    # All names are looked at first: the last must not fail when the others have been simulated.
    runs = [(name, *apply(name, runner.spec, cluster)) for name in names or ["job"]]
    found = []
    for number, (name, spec, on) in enumerate(runs):
        strategy = name if names else spec.scheduling.strategy

        def progress(done: int, total: int, before: int = number, name: str = strategy) -> None:
            bar.show(f"simulating {name}, steps", before * total + done, len(runs) * total)

        found.append(runner.one(spec, on, strategy, progress))
    points = [SweepPoint(one.strategy, {}, one) for one in found]
    frontier = rank((), points) if len(points) > 2 else None
    return Report(tuple(found), cluster, frontier, notes=notes(runner.spec, cluster))


def notes(spec: JobSpec, cluster: Cluster) -> tuple[str, ...]:
    """Where the job's numbers of instances and the cluster do not go together."""
    return tuple(room_notes(spec, cluster, load_shape(spec.model.path, spec.model.dtype)))


def swept(runner: Runner, axes: Sequence[Axis], names: Sequence[str], bar: Bar) -> Report:
    """Every point of the sweep, and its fastest, its knee and its cheapest in detail."""
    found = sweep(
        axes,
        runner.spec,
        runner.cluster,
        runner.without_spans,
        strategies=names or ["job"],
        progress=lambda done, total: bar.show("simulating points", done, total),
    )
    return Report(_in_detail(runner, found), runner.cluster.cluster(), found)


def _in_detail(runner: Runner, found: Sweep) -> tuple[Simulation, ...]:
    ends = (found.frontier[0], found.frontier[-1])
    chosen = dict.fromkeys(ends if found.knee is None else (ends[0], found.knee, ends[1]))
    detailed = []
    for index in chosen:
        point = found.points[index]
        job = apply(point.strategy, *changed(runner.spec, runner.cluster, point.values))
        named = f"{told_apart(found)} = {label(found, index)}"
        detailed.append(replace(runner.one(*job, point.strategy), strategy=named))
    return tuple(detailed)


def budgeted(runner: Runner, usd: float, names: Sequence[str], bar: Bar) -> Report:
    """What the money buys, and the way that is recommended in detail."""
    cluster = runner.cluster.cluster()
    spot = any(pool.spot_nodes for pool in cluster.pools_for("rollout"))
    usual = ["static", "rlhfless", *(["rlhfless+spot"] if spot else [])]
    answer = answer_budget(
        usd,
        runner.spec,
        cluster,
        runner.one,
        strategies=names or usual,
        num_prompts=len(runner.scenarios.of(runner.spec).prompts),
        progress=lambda done, total: bar.show("simulating ways", done, total),
    )
    shown = answer.best or min(answer.ways, key=lambda way: way.usd)
    points = [SweepPoint(way.name, {}, way.simulation) for way in answer.ways]
    one = replace(shown.simulation, strategy=shown.name)
    return Report((one,), cluster, rank((), points), answer)
