"""One simulation in the terminal: when it is done, what it holds, what it costs, why to doubt it.

Fits 80 columns. ``simulator.report.side_by_side`` has several simulations.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from simulator.report.contents import (
    Report,
    actors,
    by_function,
    extent,
    outside_s,
    split,
    step_s,
    whole,
)
from simulator.report.units import (
    count,
    duration,
    held_scale,
    number,
    percent,
    share,
    time_scale,
    usd,
)
from simulator.result import Simulation, Use


def show(report: Report, simulation: Simulation) -> RenderableType:
    """All there is to say about one simulation."""
    return Group(
        heading(simulation, f", {simulation.strategy}"),
        "",
        _times(simulation),
        "",
        usage(report, simulation),
        "",
        _rest(simulation),
        *remarks(report),
    )


def heading(first: Simulation, more: str = "") -> Text:
    """What all simulations of a report have in common, and ``more`` of the only one."""
    where = f" on {first.cluster}{more}\n"
    return Text.assemble((first.job, "bold"), where, (extent(first), "dim"))


def new_table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))


def remarks(report: Report) -> list[RenderableType]:
    """What does not go together, and what was taken for granted, once each."""
    assumed = dict.fromkeys(each for one in report.simulations for each in one.assumptions)
    parts: list[RenderableType] = []
    for title, told in (("Note", report.notes), ("Assumed", assumed)):
        if told:
            table = Table.grid(padding=(0, 1))
            for each in told:
                table.add_row(" -", Text(each))
            parts += ["", Text(title, "bold"), table]
    return parts


def _times(simulation: Simulation) -> Table:
    table = Table.grid(padding=(0, 2))
    outside = outside_s(simulation)
    told = f"[bold]{duration(simulation.seconds)}[/bold]"
    if outside >= 0.01 * simulation.seconds:
        told += f"   {duration(outside)} of it starting, evaluating and writing the model"
    table.add_row("[bold]Job[/bold]", told)
    quantiles = {"mean": step_s(simulation)} | {
        name: simulation.step_quantile(q)
        for name, q in (("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("longest", 1.0))
    }
    scale = time_scale(quantiles.values())
    told = "   ".join(f"{name} {scale.show(value)}" for name, value in quantiles.items())
    table.add_row("[bold]Step[/bold]", f"{told} {scale.unit}")
    parts = split(simulation)
    if parts:
        table.add_row("", "   ".join(f"{name} {percent(part)}" for name, part in parts.items()))
    return table


def usage(report: Report, simulation: Simulation) -> Table:
    """Accelerator time by function and phase; functions on the host's CPUs below the total."""
    ordered = by_function(simulation).items()
    on_accelerators = {function: use for function, use in ordered if use.accelerators}
    on_hosts = {function: use for function, use in ordered if not use.accelerators}
    total = whole(simulation)
    scale = held_scale([total.held_s, *(use.held_s for use in on_hosts.values())], report.noun)
    table = new_table()
    table.add_column(scale.unit)
    for name in ("held", "share", "busy", "idle", "starting", "idle share", "cost"):
        table.add_column(name, justify="right")
    for function, use in on_accelerators.items():
        name = f"{function}, {use.accelerators} each" if use.accelerators > 1 else function
        table.add_row(name, *_seconds(use, total.held_s, scale.show), usd(use.usd))
    table.add_row("all", *_seconds(total, total.held_s, scale.show), usd(total.usd), style="bold")
    hours = scale.unit.rsplit("-", 1)[1]
    for function, use in on_hosts.items():
        told = _seconds(use, 0.0, scale.show)
        table.add_row(f"{function} (instance-{hours})", *told, usd(use.usd), style="dim")
    return table


def _seconds(use: Use, of: float, show: Callable[[float], str]) -> tuple[str, ...]:
    return (
        show(use.held_s),
        share(use.held_s, of),
        show(use.busy_s),
        show(use.idle_s),
        show(use.cold_s),
        share(use.idle_s, use.held_s),
    )


def _rest(simulation: Simulation) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("[bold]Cost[/bold]", escape(cost(simulation)))
    tokens = f"{count(simulation.tokens)} response, {count(simulation.prompt_tokens)} prompt"
    table.add_row("[bold]Tokens[/bold]", f"{tokens}; {number(simulation.tokens_per_s)} response/s")
    moved = sum(step.moved * step.stands_for for step in simulation.simulated) / simulation.steps
    told = f"{actors(simulation)} a step; {number(moved)} samples moved a step"
    if simulation.preemptions:
        told += f"; {number(simulation.preemptions)} preemptions"
    table.add_row("[bold]Actors[/bold]", told)
    return table


def cost(simulation: Simulation) -> str:
    """Dollars as run, and what they would be on one kind of capacity alone."""
    if simulation.usd is None and simulation.usd_on_demand is None and simulation.usd_spot is None:
        return "unknown: the cluster has no price (pools.<name>.price_usd_per_hour)"
    return (
        f"{usd(simulation.usd)} as run; {usd(simulation.usd_on_demand)} all on demand, "
        f"{usd(simulation.usd_spot)} all on spot"
    )
