"""The pictures of the page: instances over time, the cost by function, steps, the frontier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.report.contents import PHASES, Report, by_function, label, told_apart
from simulator.report.markup import WIDTH, Axis, legend, plot, text
from simulator.report.palette import LABELS
from simulator.report.timeline import BINS, Area, Lane, Timeline, timeline
from simulator.report.units import duration, held_scale, number, price, room_around, time_scale
from simulator.result import InstanceSpan, Simulation, StepFound
from simulator.sweep import Sweep

LANE = 15
"""Units of height of a lane."""
AREA = 90
STEPS = 120
FRONTIER = 320
NAMED = 8
"""Most points that all have their names beside them."""
PARTS = ("rollout", "scoring", "training", "other")
"""Of a step's time."""
TOUCHED = 500
"""Most steps of a plot that can be pointed at."""


def timelines(report: Report) -> str:
    """A plot a simulation, all on one scale of time."""
    found = [(one, timeline(one)) for one in report.simulations]
    drawn = [(one, each) for one, each in found if each is not None]
    if not drawn:
        return "<p>No instance was held in the window.</p>"
    longest = max(each.seconds for _, each in drawn)
    entries = [(str(phase), LABELS[phase]) for phase in PHASES]
    if any(each.spot and each.lanes for _, each in drawn):
        entries.append(("spot", "striped: spot"))
    parts = [legend(entries)]
    for one, each in drawn:
        parts.append(f"<h3>{text(one.strategy)}</h3>")
        parts.append(_timeline(one, each, longest))
    return "".join(parts)


def _timeline(one: Simulation, found: Timeline, longest: float) -> str:
    axis = Axis(time_scale([longest]), 0.0, longest)
    names: list[tuple[float, str, str]] = []
    if found.lanes:
        height = LANE * len(found.lanes)
        shapes = _lanes(found.lanes, longest, names)
    else:
        height = AREA * len(found.areas)
        shapes = "".join(
            _area(n, area, found.seconds, longest) for n, area in enumerate(found.areas)
        )
        for n, area in enumerate(found.areas):
            names.append((AREA * (n + 0.5), area.function, f"up to {area.peak:,.0f}"))
    labels = "".join(
        f'<span style="top:{100 * at / height:.2f}%"><b>{name}</b><br>{text(more)}</span>'
        for at, name, more in names
    )
    told = f"Instances of {one.strategy} over {duration(found.seconds)}, by phase"
    return plot(told, axis.upright(height) + shapes, height, labels, axis.below())


def _lanes(lanes: Sequence[Lane], longest: float, names: list[tuple[float, str, str]]) -> str:
    shapes = []
    groups: dict[str, list[int]] = {}
    for row, lane in enumerate(lanes):
        groups.setdefault(lane.function, []).append(row)
        shapes += [_bar(row, bar, longest) for bar in lane.bars]
    for function, rows in groups.items():
        if rows[0]:
            y = LANE * rows[0]
            shapes.append(f'<line class="rule" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>')
        more = "" if len(rows) == 1 else f"{len(rows)} at once"
        names.append((LANE * (rows[0] + len(rows) / 2), function, more))
    return "".join(shapes)


def _bar(row: int, bar: InstanceSpan, longest: float) -> str:
    x, wide = WIDTH * bar.start_s / longest, WIDTH * (bar.end_s - bar.start_s) / longest
    scale = time_scale([bar.end_s])
    size = f", {bar.accelerators} accelerators" if bar.accelerators > 1 else ""
    where = f"{bar.pool}, {'spot' if bar.spot else 'on demand'}" if bar.pool else "a host's CPUs"
    told = (
        f"{bar.instance}{size}\n{LABELS[bar.phase]} {duration(bar.end_s - bar.start_s)}, "
        f"from {scale.show(bar.start_s)} to {scale.tell(bar.end_s)}\n{where}"
    )
    place = f'x="{x:.2f}" y="{LANE * row + 1.5:g}" width="{wide:.2f}" height="{LANE - 3}"'
    shape = f'<rect class="{bar.phase}" {place} data-t="{text(told)}"/>'
    return shape + (f'<rect fill="url(#spot)" pointer-events="none" {place}/>' if bar.spot else "")


def _area(n: int, area: Area, seconds: float, longest: float) -> str:
    """On a scale of its own: its peak fills most of its band."""
    base, column = AREA * (n + 1), WIDTH * seconds / longest / BINS
    low = [0.0] * BINS
    shapes = []
    for phase in PHASES:
        high = [a + float(b) for a, b in zip(low, area.by_phase[phase], strict=True)]
        scaled = [[base - 0.88 * AREA * each / area.peak for each in line] for line in (high, low)]
        path = _staircase(scaled[0], scaled[1], column)
        shapes.append(f'<path class="{phase}" d="{path}"/>')
        low = high
    for each in range(BINS):
        told = ", ".join(f"{number(area.by_phase[p][each])} {LABELS[p]}" for p in PHASES)
        at = duration((each + 0.5) * seconds / BINS)
        shapes.append(
            f'<rect class="touch" x="{column * each:.2f}" y="{base - AREA}" width="{column:.2f}" '
            f'height="{AREA}" data-t="{area.function} at {at}\n{told}"/>'
        )
    shapes.append(f'<line class="rule" x1="0" x2="{WIDTH}" y1="{base}" y2="{base}"/>')
    return "".join(shapes)


def _staircase(high: Sequence[float], low: Sequence[float], column: float) -> str:
    ahead = [f"V{y:.1f}H{column * (n + 1):.1f}" for n, y in enumerate(high)]
    back = [f"V{y:.1f}H{column * n:.1f}" for n, y in reversed(list(enumerate(low)))]
    return f"M0 {low[0]:.1f}{''.join(ahead)}{''.join(back)}Z"


def costs(report: Report) -> str:
    """Bars by function and phase, all on one scale."""
    scale = held_scale((one.held_s for one in report.simulations), report.noun)
    longest = max(
        (use.held_s for one in report.simulations for use in one.usage.values()), default=0.0
    )
    parts = [legend((str(phase), LABELS[phase]) for phase in PHASES)]
    for one in report.simulations:
        told = f"{one.strategy}: {scale.tell(one.held_s)}, {price(one.usd)}"
        parts.append(f'<h3>{text(told)}</h3><div class="bars" aria-hidden="true">')
        for function, use in by_function(one).items():
            if not use.accelerators:
                continue
            bars = "".join(
                f'<span class="{phase}" style="width:{_share(seconds, longest):.2f}%" '
                f'data-t="{function}, {LABELS[phase]}: {text(scale.tell(seconds))}"></span>'
                for phase, seconds in zip(PHASES, (use.busy_s, use.idle_s, use.cold_s), strict=True)
            )
            parts.append(
                f'<div class="name">{function}</div>'
                f'<div class="bar">{bars}<em>{text(price(use.usd))}</em></div>'
            )
        parts.append("</div>")
    return "".join(parts)


def _share(part: float, longest: float) -> float:
    """Room is left for the dollars."""
    return 80 * part / longest if longest else 0.0


def steps(report: Report) -> str:
    """Seconds of each simulated step by part, a plot a simulation, all on the same scales."""
    parts = [legend((part, part) for part in PARTS)]
    longest = max(step.seconds for one in report.simulations for step in one.simulated)
    axis = Axis(time_scale([longest]), 0.0, longest / 0.94)
    parts += [f"<h3>{text(one.strategy)}</h3>{_steps(one, axis)}" for one in report.simulations]
    return "".join(parts)


def _steps(one: Simulation, axis: Axis) -> str:
    """A step is as wide as the steps it stands for, and as high as its seconds."""
    found = sorted(one.simulated, key=lambda step: step.step)
    weight = sum(step.stands_for for step in found)
    shapes, left = [], 0.0
    for step in found:
        wide = WIDTH * step.stands_for / weight
        bottom = float(STEPS)
        for part, seconds in zip(PARTS, _parts(step), strict=True):
            high = STEPS * axis.at(seconds)
            bottom -= high
            shapes.append(
                f'<rect class="{part}" x="{left:.2f}" y="{bottom:.2f}" width="{wide:.2f}" '
                f'height="{high:.2f}"/>'
            )
        if len(found) <= TOUCHED:
            told = "\n".join(
                [f"step {step.step}: {duration(step.seconds)}, {step.actors} actors"]
                + [f"{p} {duration(s)}" for p, s in zip(PARTS, _parts(step), strict=True)]
                + [f"longest response {step.longest:,} tokens"]
            )
            shapes.append(
                f'<rect class="touch" x="{left:.2f}" y="0" width="{wide:.2f}" height="{STEPS}" '
                f'data-t="{text(told)}"/>'
            )
        left += wide
    below = (
        f'<span style="left:0">step {found[0].step}</span>'
        f'<span class="last" style="left:100%">step {one.steps}</span>'
    )
    told = f"Seconds of each simulated step of {one.strategy}, by part"
    return plot(told, "".join(shapes), STEPS, axis.beside(4), below)


def _parts(step: StepFound) -> tuple[float, float, float, float]:
    known = (step.rollout_s, step.scoring_s, step.train_s)
    return (*known, max(0.0, step.seconds - sum(known)))


def frontier(report: Report, sweep: Sweep) -> str:
    """Time against cost; points on the frontier are joined, the knee is marked and named."""
    at = [sweep.time_and_cost(index) for index in range(len(sweep.points))]
    times, costs = ([point[n] for point in at] for n in (0, 1))
    held = held_scale(costs, report.noun)
    dollars = replace(held, divisor=1.0, unit="USD")
    across = Axis(time_scale(times), *room_around(times))
    up = Axis(dollars if sweep.in_usd else held, *room_around(costs))
    line = " ".join(
        f"{WIDTH * across.at(at[i][0]):.1f},{FRONTIER * (1 - up.at(at[i][1])):.1f}"
        for i in sweep.frontier
    )
    shapes = across.upright(FRONTIER) + up.level(FRONTIER, 5) + f'<polyline points="{line}"/>'
    dots = "".join(
        _dot(report, sweep, i, across.at(time), up.at(cost)) for i, (time, cost) in enumerate(at)
    )
    told = f"Time and cost of {len(at)} points; {len(sweep.frontier)} are on the frontier"
    return plot(told, shapes, FRONTIER, up.beside(5), across.below(), dots)


def _dot(report: Report, sweep: Sweep, index: int, across: float, up: float) -> str:
    run = sweep.points[index].simulation
    css = "knee" if index == sweep.knee else "best" if index in sweep.frontier else ""
    place = f"left:{100 * across:.2f}%;top:{100 * (1 - up):.2f}%"
    held = held_scale([run.held_s], report.noun).tell(run.held_s)
    named = label(sweep, index)
    told = f"{told_apart(sweep)}: {named}\n{duration(run.seconds)}, {held}, {price(run.usd)}"
    dot = f'<span class="dot {css}" style="{place}" data-t="{text(told)}"></span>'
    if index != sweep.knee and len(sweep.points) > NAMED:
        return dot
    side = " left" if across > 0.7 else ""
    more = " (knee)" if index == sweep.knee else ""
    return f'{dot}<span class="tag{side}" style="{place}">{text(named)}{more}</span>'
