"""Several simulations of a job in the terminal, each against the first. Fits 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from rlhfless.messages import FunctionName
from simulator.report.contents import Report, by_function, compare, step_s, whole
from simulator.report.table import heading, new_table, remarks
from simulator.report.units import (
    Scale,
    factor,
    held_scale,
    number,
    percent,
    share,
    time_scale,
    usd,
)
from simulator.result import Simulation, Use


def show(report: Report) -> RenderableType:
    """Two or more simulations: totals, where accelerator time goes, what sets them apart."""
    first = report.simulations[0]
    return Group(
        heading(first),
        "",
        _totals(report),
        f"[dim]speed-up, saved: against {escape(first.strategy)}[/dim]",
        "",
        _shares(report),
        *remarks(report),
    )


def _totals(report: Report) -> Table:
    """A row a simulation; the best of a column is bold."""
    runs = report.simulations
    times = time_scale(run.seconds for run in runs)
    steps = time_scale(run.step_quantile(0.99) for run in runs)
    held = held_scale([run.held_s for run in runs], report.noun)
    table = new_table()
    table.add_column("strategy", overflow="fold", max_width=24)
    for name in ("job", "step", "p99", "speed-up", held.unit, "saved", "cost", "saved"):
        table.add_column(name, justify="right")
    table.add_row("", times.unit, steps.unit, steps.unit, "", "", "", "", "", style="dim")
    best_time = min(run.seconds for run in runs)
    best_held = min(run.held_s for run in runs)
    prices = [run.usd for run in runs if run.usd is not None]
    best_usd = min(prices, default=None)
    for run in runs:
        against = compare(run, runs[0])
        table.add_row(
            escape(run.strategy),
            _bold(times.show(run.seconds), run.seconds == best_time),
            steps.show(step_s(run)),
            steps.show(run.step_quantile(0.99)),
            "" if run is runs[0] else factor(against.speedup),
            _bold(held.show(run.held_s), run.held_s == best_held),
            "" if run is runs[0] else percent(against.held_saved),
            _bold(usd(run.usd), run.usd is not None and run.usd == best_usd),
            "" if run is runs[0] else percent(against.usd_saved),
        )
    return table


def _shares(report: Report) -> Table:
    """What becomes of accelerator time, and who holds it."""
    functions = functions_of(report.simulations)
    held = held_scale([run.held_s for run in report.simulations], report.noun)
    table = new_table()
    table.add_column("strategy", overflow="fold", max_width=24)
    for name in ("busy", "idle", "start", *functions, "tokens/s"):
        table.add_column(name, justify="right")
    units = [held.unit] * len(functions)
    table.add_row("", "", "", "", *units, "", style="dim")
    for run in report.simulations:
        total = whole(run)
        table.add_row(
            escape(run.strategy),
            *(share(each, total.held_s) for each in (total.busy_s, total.idle_s, total.cold_s)),
            *(_held(run.usage.get(function), held) for function in functions),
            number(run.tokens_per_s),
        )
    return table


def functions_of(simulations: Sequence[Simulation]) -> list[FunctionName]:
    """That hold accelerators in any of them."""
    found = dict.fromkeys(
        function
        for run in simulations
        for function, use in by_function(run).items()
        if use.accelerators
    )
    return list(found)


def _bold(text: str, best: bool) -> str:
    return f"[bold]{text}[/bold]" if best else text


def _held(use: Use | None, scale: Scale) -> str:
    return "-" if use is None else scale.show(use.held_s)
