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
    from rlhfless.cli.simulation_runs import Runner
    from rlhfless.spec import JobSpec
    from simulator.report.contents import Report


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
    sweep: Sequence[str] = ()
    budget: float | None = None
    seed: int | None = None
    steps: str = "all"
    out: str | None = None
    as_json: bool = False


def simulate_job(wishes: Wishes) -> None:
    """Simulate, print, write files."""
    from rlhfless.cli.simulation_runs import budgeted, compared, swept
    from simulator.sweep import parse_axis

    if wishes.sweep and wishes.budget is not None:
        raise UserError("--sweep and --budget answer two questions: ask one", param="--budget")
    names = strategy_names(wishes.compare)
    axes = [parse_axis(each) for each in wishes.sweep]
    runner = _runner(wishes)
    with Bar() as bar:
        if wishes.budget is not None:
            report = budgeted(runner, wishes.budget, names, bar)
        elif axes:
            report = swept(runner, axes, names, bar)
        else:
            report = compared(runner, names, bar)
    if wishes.as_json:
        _print_json(report)
        if wishes.out is not None:
            write(report, wishes.out)
        return
    console = Console(highlight=False)
    print_report(console, report)
    folder = wishes.out or os.path.join(FOLDER, runner.spec.name)
    files = write(report, folder)
    where = f"\nWritten to {os.path.relpath(folder)}: {', '.join(files)}"
    console.print(where, markup=False, soft_wrap=True)
    if "gantt.png" not in files:
        from simulator.report.charts import INSTALL

        console.print(f"no charts: matplotlib is not installed; {INSTALL}", markup=False)


def estimate_job(
    job: str, overrides: Sequence[str], cluster: str | None, workload: str | None, as_json: bool
) -> None:
    """Simulate a few steps and print."""
    from rlhfless.cli.simulation_runs import notes
    from simulator.estimate import estimate
    from simulator.known_clusters import default_cluster, find_cluster
    from simulator.report.contents import Report
    from simulator.scenario_file import make_scenario

    spec = load_spec(job, overrides)
    on = (find_cluster(cluster) if cluster else default_cluster(spec)).cluster()
    scenario = make_scenario(spec, workload_path=workload)
    report = Report((estimate(spec, on, scenario),), on, notes=notes(spec, on))
    if as_json:
        _print_json(report)
        return
    console = Console(highlight=False)
    print_report(console, report)
    if cluster is None:
        console.print(f"\nOn the default cluster {on.name}; --cluster names another.", style="dim")


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


def print_report(console: Console, report: Report) -> None:
    """The view that fits what was asked."""
    from simulator.report import budget_table, side_by_side, sweep_table, table

    if report.budget is not None:
        console.print(budget_table.show(report, report.budget))
    elif report.sweep is not None and report.sweep.axes:
        console.print(sweep_table.show(report, report.sweep))
    elif len(report.simulations) > 1:
        console.print(side_by_side.show(report))
    else:
        console.print(table.show(report, report.simulations[0]))


def _runner(wishes: Wishes) -> Runner:
    from rlhfless.cli.simulation_runs import Runner
    from rlhfless.measurements import load_measurements, merged
    from simulator.known_clusters import default_cluster, find_cluster
    from simulator.replay import read_replay
    from simulator.scenario_file import Scenarios

    seed = () if wishes.seed is None else (f"seed={wishes.seed}",)
    spec = load_spec(wishes.job, (*wishes.overrides, *seed))
    max_steps = _max_steps(wishes.steps, spec)
    replay = None if wishes.replay is None else read_replay(wishes.replay)
    measured = None if replay is None else replay.measurements
    if wishes.calibrate is not None:
        given = load_measurements(wishes.calibrate)
        measured = given if measured is None else merged(measured, given)
    return Runner(
        spec=spec,
        cluster=find_cluster(wishes.cluster) if wishes.cluster else default_cluster(spec),
        scenarios=Scenarios(
            workload_path=wishes.workload,
            replay=None if replay is None else replay.lengths,
            measurements=measured,
        ),
        max_steps=max_steps,
    )


def _max_steps(steps: str, spec: JobSpec) -> int | None:
    from simulator.sampling import usual_steps

    if steps == "all":
        return None
    if steps == "auto":
        return usual_steps(spec.training.prompts_per_step * spec.algorithm.group_size)
    if not (steps.isascii() and steps.isdigit()) or int(steps) < 1:
        raise UserError(f"--steps {steps}: write a number of steps, auto or all", param="--steps")
    return int(steps)


def _print_json(report: Report) -> None:
    from simulator.report.json_file import dump

    typer.echo(dump(report), nl=False)
