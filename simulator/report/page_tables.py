"""The tables of the page: strategies compared, usage, steps and their plans, the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.cluster import Cluster
from simulator.hardware import show_usd
from simulator.report.contents import (
    Report,
    actors,
    by_function,
    compare,
    label,
    step_s,
    told_apart,
    whole,
)
from simulator.report.markup import Cell, table, text
from simulator.report.units import (
    count,
    duration,
    factor,
    held_scale,
    number,
    percent,
    share,
    time_scale,
    usd,
)
from simulator.result import Simulation, StepFound
from simulator.sweep import Sweep

PLANS = 60
"""Steps whose plans are shown, spread over those simulated; all are in simulation.json."""
ALTERNATIVES = 8


def comparison(report: Report) -> str:
    """Every simulation against the first."""
    runs = report.simulations
    times = time_scale(run.seconds for run in runs)
    steps = time_scale(run.step_quantile(0.99) for run in runs)
    held = held_scale((run.held_s for run in runs), report.noun)
    best_usd = min((run.usd for run in runs if run.usd is not None), default=None)
    rows = []
    for run in runs:
        against, first = compare(run, runs[0]), run is runs[0]
        rows.append(
            (
                run.strategy,
                _barred(times.show(run.seconds), run.seconds, [each.seconds for each in runs]),
                steps.show(step_s(run)),
                steps.show(run.step_quantile(0.99)),
                "" if first else factor(against.speedup),
                _barred(held.show(run.held_s), run.held_s, [each.held_s for each in runs]),
                "" if first else percent(against.held_saved),
                percent(run.idle_fraction),
                Cell(text(usd(run.usd)), "best" if run.usd and run.usd == best_usd else ""),
                "" if first else percent(against.usd_saved),
                number(run.tokens_per_s),
            )
        )
    heads = (
        "Strategy",
        f"Job, {times.unit}",
        f"Step, {steps.unit}",
        f"p99, {steps.unit}",
        "Speed-up",
        held.unit,
        "Saved",
        "Idle",
        "Cost",
        "Saved",
        "Tokens/s",
    )
    return table(f"Speed-up and saved: against {runs[0].strategy}. Best in green.", heads, rows)


def _barred(shown: str, value: float, of: Sequence[float]) -> Cell:
    wide = 100 * value / max(of) if max(of) else 0.0
    best = "best" if value == min(of) else ""
    return Cell(f'{text(shown)}<i class="mini" style="width:{wide:.0f}%"></i>', best)


def usage(report: Report, one: Simulation) -> str:
    """By function and phase, with dollars as run and on one kind of capacity alone."""
    total = whole(one)
    scale = held_scale([use.held_s for use in (total, *one.usage.values())], report.noun)
    rows: list[tuple[str, ...]] = []
    css = []
    for name, use in [*by_function(one).items(), ("all", total)]:
        host = not use.accelerators and name != "all"
        rows.append(
            (
                f"{name}, on host CPUs (instances)" if host else str(name),
                "" if host or name == "all" else str(use.accelerators),
                scale.show(use.held_s),
                "" if host else share(use.held_s, total.held_s),
                scale.show(use.busy_s),
                scale.show(use.idle_s),
                scale.show(use.cold_s),
                share(use.idle_s, use.held_s),
                usd(use.usd),
                usd(use.usd_on_demand),
                usd(use.usd_spot),
            )
        )
        css.append("total" if name == "all" else "")
    heads = (
        "Function",
        f"{report.noun}s each",
        f"Held, {scale.unit}",
        "Share",
        "Busy",
        "Idle",
        "Starting",
        "Idle share",
        "As run",
        "All on demand",
        "All on spot",
    )
    return table(f"{one.strategy}: what functions hold", heads, rows, row_css=css)


def quantiles(report: Report) -> str:
    """Step times over the whole job."""
    scale = time_scale(one.step_quantile(1.0) for one in report.simulations)
    rows = [
        (
            one.strategy,
            scale.show(step_s(one)),
            *(scale.show(one.step_quantile(q)) for q in (0.5, 0.9, 0.99, 1.0)),
            actors(one),
            count(one.tokens / one.steps),
            number(one.preemptions),
        )
        for one in report.simulations
    ]
    heads = ("Strategy", "Mean", "Median", "p90", "p99", "Longest", "Actors", "Tokens", "Preempted")
    caption = f"A step, in {scale.unit}, with its response tokens; preempted: over the whole job"
    return table(caption, heads, rows)


def plans(one: Simulation) -> str:
    """Each simulated step: its plan, why, and what came of it."""
    shown = _spread(one.simulated, PLANS)
    rows = [
        (
            str(step.step),
            duration(step.seconds),
            str(step.actors),
            str(step.plan.get("strategy", "-")),
            f"{step.longest:,}",
            f"{step.moved:,}",
            Cell(text(step.plan.get("reason", "-")) + _alternatives(step.plan)),
        )
        for step in shown
    ]
    heads = ("Step", "Time", "Actors", "Assignment", "Longest", "Moved", "Why")
    told = f"{len(shown)} of {len(one.simulated)} simulated steps" if shown else "no step"
    caption = f"{told}; longest response in tokens, samples moved between actors"
    return table(caption, heads, rows, words=(6,))


def _spread(steps: Sequence[StepFound], most: int) -> list[StepFound]:
    if len(steps) <= most:
        return list(steps)
    return [steps[round(n * (len(steps) - 1) / (most - 1))] for n in range(most)]


def _alternatives(plan: Any) -> str:
    """Those with the lowest scores, the chosen one among them."""
    known = [each for each in plan.get("alternatives", ()) if each["score"] is not None]
    if len(known) < 2:
        return ""
    ranked = sorted(known, key=lambda each: (not each.get("chosen"), each["score"]))[:ALTERNATIVES]
    rows = [
        (
            f"{each['actors']}{' (chosen)' if each.get('chosen') else ''}",
            str(each["strategy"]),
            duration(each["seconds"]),
            number(each["function_seconds"]),
            f"{each['score']:.4f}",
        )
        for each in sorted(ranked, key=lambda each: (each["actors"], each["score"]))
    ]
    css = ["total" if "chosen" in row[0] else "" for row in rows]
    heads = ("Actors", "Assignment", "Predicted", "Function-s", "Score")
    made = table(f"The best {len(rows)} of {len(known)} plans", heads, rows, row_css=css)
    return f"<details><summary>{len(known)} plans were weighed</summary>{made}</details>"


def pools(cluster: Cluster) -> str:
    """What the job may run on, and what that costs."""
    rows = []
    for name, pool in cluster.pools.items():
        size = f"{pool.nodes} x {pool.per_node} {pool.accelerator_name}"
        rows.append(
            (
                name,
                size,
                f"{pool.accelerator.memory_gib:g} GiB",
                str(pool.spot_nodes) if pool.spot_nodes else "none",
                show_usd(pool.on_demand_usd_per_hour),
                show_usd(pool.spot_usd_per_hour),
            )
        )
    heads = ("Pool", "Nodes x accelerators", "Memory each", "Spot nodes", "On demand", "On spot")
    return table(f"{cluster.name}: prices per accelerator and hour", heads, rows)


def sweep_points(report: Report, sweep: Sweep) -> str:
    """Every point, in the order in which they were asked for."""
    runs = [point.simulation for point in sweep.points]
    times = time_scale(run.seconds for run in runs)
    steps = time_scale(step_s(run) for run in runs)
    held = held_scale((run.held_s for run in runs), report.noun)
    rows = [
        (
            label(sweep, index),
            times.show(run.seconds),
            steps.show(step_s(run)),
            held.show(run.held_s),
            percent(run.idle_fraction),
            usd(run.usd),
            "knee" if index == sweep.knee else "frontier" if index in sweep.frontier else "",
        )
        for index, run in enumerate(runs)
    ]
    heads = (told_apart(sweep), f"Job, {times.unit}", f"Step, {steps.unit}", held.unit, "Idle")
    css = ["knee" if index == sweep.knee else "" for index in range(len(runs))]
    cost = "dollars" if sweep.in_usd else f"{report.noun} time"
    caption = f"Frontier: nothing beats it in both time and {cost}"
    return table(caption, (*heads, "Cost", ""), rows, row_css=css)


def impossible(sweep: Sweep) -> str:
    rows = [
        (", ".join([each.strategy, *map(str, each.values.values())]), each.reason)
        for each in sweep.impossible
    ]
    return table("Combinations that cannot be run", ("Which", "Why"), rows, words=(1,))
