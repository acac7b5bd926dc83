"""``rlhfless simulate`` and ``rlhfless estimate``: what a job takes, before anything is run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from rlhfless.cli.simulation_files import FOLDER, Bar, write
from rlhfless.errors import UserError
from rlhfless.spec_file import load_spec

if TYPE_CHECKING:
    from rlhfless.spec import JobSpec
    from simulator.report.contents import Report
    from simulator.scenario import Scenario

STEPS = "12"
"""Simulated unless told otherwise: enough to see a job's shape, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the command line says, as it says it; None or empty: nothing."""

    job: str
    overrides: Sequence[str] = ()
    cluster: str | None = None
    workload: str | None = None
    replay: str | None = None
    calibrate: str | None = None
    compare: str | None = None
    seed: int | None = None
    steps: str = STEPS
    out: str | None = None
    as_json: bool = False


def simulate_job(wishes: Wishes) -> None:
    """Simulate, print, write files."""
    names = strategy_names(wishes.compare)
    max_steps = _max_steps(wishes.steps)
    spec = _load(wishes)
    report = _simulate(spec, wishes, names, max_steps)
    if wishes.as_json:
        _print_json(report)
        if wishes.out is not None:
            write(report, wishes.out)
        return
    console = Console(highlight=False)
    _print(console, report)
    folder = wishes.out or os.path.join(FOLDER, spec.name)
    files = write(report, folder)
    console.print()
    console.print(
        f"Written to {os.path.relpath(folder)}: {', '.join(files)}", markup=False, soft_wrap=True
    )
    if "gantt.png" not in files:
        from simulator.report.charts import INSTALL

        console.print(f"no charts: matplotlib is not installed; {INSTALL}", markup=False)


def estimate_job(
    job: str, overrides: Sequence[str], cluster: str | None, workload: str | None, as_json: bool
) -> None:
    """Simulate a few steps and print."""
    from simulator.estimate import estimate
    from simulator.known_clusters import default_cluster, find_cluster
    from simulator.report.contents import Report
    from simulator.scenario_file import make_scenario

    spec = load_spec(job, overrides)
    on = find_cluster(cluster) if cluster else default_cluster(spec)
    scenario = make_scenario(spec, workload_path=workload)
    report = Report((estimate(spec, on, scenario),), on)
    if as_json:
        _print_json(report)
        return
    console = Console(highlight=False)
    _print(console, report)
    if cluster is None:
        console.print(f"\non the default cluster {on.name}; --cluster names another", style="dim")


def strategy_names(compare: str | None) -> list[str]:
    """Of ``--compare a,b,c``. Raises ``UserError`` for a name that is not known, before anything
    is simulated."""
    from simulator.strategies import check_names

    if compare is None:
        return []
    names = [name.strip() for name in compare.split(",")]
    check_names(names)
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise UserError(f"--compare names {min(twice)} twice", param="--compare")
    return names


def _max_steps(steps: str) -> int | None:
    if steps == "all":
        return None
    if not steps.isdigit() or int(steps) < 1:
        raise UserError(f"--steps {steps}: write a number of steps, or all", param="--steps")
    return int(steps)


def _load(wishes: Wishes) -> JobSpec:
    seed = () if wishes.seed is None else (f"seed={wishes.seed}",)
    return load_spec(wishes.job, (*wishes.overrides, *seed))


def _scenario(spec: JobSpec, wishes: Wishes) -> Scenario:
    from rlhfless.measurements import load_measurements, merged
    from simulator.replay import read_replay
    from simulator.scenario_file import make_scenario

    replay = None if wishes.replay is None else read_replay(wishes.replay)
    measured = None if replay is None else replay.measurements
    if wishes.calibrate is not None:
        given = load_measurements(wishes.calibrate)
        measured = given if measured is None else merged(measured, given)
    return make_scenario(
        spec,
        workload_path=wishes.workload,
        replay=None if replay is None else replay.lengths,
        measurements=measured,
    )


def _simulate(spec: JobSpec, wishes: Wishes, names: Sequence[str], max_steps: int | None) -> Report:
    from simulator.known_clusters import default_cluster, find_cluster
    from simulator.report.contents import Report
    from simulator.simulate import Options, simulate
    from simulator.strategies import apply

    cluster = find_cluster(wishes.cluster) if wishes.cluster else default_cluster(spec)
    scenario = _scenario(spec, wishes)
    # All names are looked at first: the last must not fail when the others have been simulated.
    runs = [(name, *apply(name, spec, cluster)) for name in names or ["job"]]
    found = []
    with Bar(len(runs)) as bar:
        for name, run, on in runs:
            strategy = name if names else run.scheduling.strategy
            bar.next(strategy)
            options = Options(seed=spec.seed, max_steps=max_steps)
            found.append(
                simulate(run, on, scenario, strategy=strategy, options=options, progress=bar.step)
            )
            bar.finished()
    return Report(tuple(found), cluster)


def _print(console: Console, report: Report) -> None:
    from simulator.report import side_by_side, table

    if len(report.simulations) == 1:
        console.print(table.show(report, report.simulations[0]))
    else:
        console.print(side_by_side.show(report))


def _print_json(report: Report) -> None:
    from simulator.report.json_file import dump

    typer.echo(dump(report), nl=False)
