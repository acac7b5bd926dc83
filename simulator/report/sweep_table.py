"""A sweep in the terminal: its points, which of them are worth considering, and the knee."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from simulator.report.contents import Report, label, step_s, told_apart
from simulator.report.table import heading, new_table, remarks
from simulator.report.units import held_scale, percent, several, time_scale, usd
from simulator.sweep import Sweep

ROWS = 40
"""Of more points, so many are shown, spread evenly; and those on the frontier if no more."""
REASONS = 3
"""Shown of why combinations cannot be run."""


def show(report: Report, sweep: Sweep) -> RenderableType:
    """Points in the order in which they were asked for."""
    first = sweep.points[0].simulation
    cost = "dollars" if sweep.in_usd else f"{report.noun} time"
    best = several(len(sweep.frontier), "point")
    told = Text.assemble(
        ("*", "bold"), f" {best} that nothing beats in both time and {cost}", style="dim"
    )
    parts: list[RenderableType] = [heading(first), "", _points(report, sweep), told]
    if sweep.knee is not None:
        parts += [
            Text.assemble(
                ("knee: ", "bold"),
                f"{told_apart(sweep)} = {label(sweep, sweep.knee)}; more speed costs much more",
            )
        ]
    return Group(*parts, *_impossible(sweep), *remarks(report))


def _points(report: Report, sweep: Sweep) -> Table:
    runs = [point.simulation for point in sweep.points]
    times = time_scale(run.seconds for run in runs)
    steps = time_scale(step_s(run) for run in runs)
    held = held_scale((run.held_s for run in runs), report.noun)
    table = new_table()
    table.add_column("")
    table.add_column(escape(told_apart(sweep)), overflow="fold", max_width=32)
    for name in (f"job, {times.unit}", f"step, {steps.unit}", held.unit, "idle", "cost"):
        table.add_column(name, justify="right")
    table.add_column("")
    shown = _shown(sweep)
    for index in shown:
        run, knee = runs[index], index == sweep.knee
        table.add_row(
            "*" if index in sweep.frontier else "",
            escape(label(sweep, index)),
            times.show(run.seconds),
            steps.show(step_s(run)),
            held.show(run.held_s),
            percent(run.idle_fraction),
            usd(run.usd),
            "<- knee" if knee else "",
            style="bold" if knee else None,
        )
    if len(shown) < len(runs):
        table.add_row("", f"({len(shown)} of {len(runs)} points)", style="dim")
    return table


def _shown(sweep: Sweep) -> list[int]:
    number = len(sweep.points)
    if number <= ROWS:
        return list(range(number))
    kept = {round(n * (number - 1) / (ROWS - 1)) for n in range(ROWS)}
    if len(sweep.frontier) <= ROWS:
        kept |= set(sweep.frontier)
    return sorted(kept if sweep.knee is None else {*kept, sweep.knee})


def _impossible(sweep: Sweep) -> list[RenderableType]:
    if not sweep.impossible:
        return []
    what = several(len(sweep.impossible), "combination")
    parts: list[RenderableType] = ["", Text(f"{what} cannot be run", "bold")]
    for each in sweep.impossible[:REASONS]:
        values = ", ".join(f"{path}={value}" for path, value in each.values.items())
        parts.append(Text(f" - {each.strategy}, {values}: {each.reason}"))
    return parts
