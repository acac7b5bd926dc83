"""What a budget buys, in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from simulator.budget import BudgetAnswer
from simulator.report.contents import Report
from simulator.report.table import new_table, remarks
from simulator.report.units import several, time_scale, usd

ROWS = 12


def show(report: Report, answer: BudgetAnswer) -> RenderableType:
    """The answer, then the ways that get farthest."""
    first = report.simulations[0]
    return Group(
        Text.assemble((first.job, "bold"), f" on {first.cluster} for {usd(answer.budget_usd)}"),
        "",
        Text(answer.sentence),
        "",
        _ways(answer),
        *remarks(report),
    )


def _ways(answer: BudgetAnswer) -> Table:
    """Steps that the money buys each way, and how long they take; then the job as it was asked."""
    shown = answer.ways[:ROWS]
    buys = time_scale(way.seconds for way in shown)
    whole = time_scale(way.simulation.seconds for way in shown)
    table = new_table()
    asked = several(answer.steps_asked, "step")
    table.add_column("strategy", overflow="fold", max_width=24)
    heads = ("actors", "time weight", "buys steps", f"in {buys.unit}", "epochs")
    for name in (*heads, f"{asked}, {whole.unit}", "cost"):
        table.add_column(name, justify="right")
    for way in shown:
        table.add_row(
            escape(way.strategy),
            str(way.max_instances),
            "" if way.time_weight is None else f"{way.time_weight:g}",
            f"{way.steps:,}",
            buys.show(way.seconds),
            f"{way.epochs:.2g}",
            whole.show(way.simulation.seconds),
            usd(way.usd),
            style="bold" if answer.best is not None and way.name == answer.best.name else None,
        )
    if len(shown) < len(answer.ways):
        table.add_row(f"({len(shown)} of {len(answer.ways)} ways)", style="dim")
    return table
