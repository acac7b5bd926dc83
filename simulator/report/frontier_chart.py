"""Time against cost of a sweep or a comparison, as PNG."""

from __future__ import annotations

from simulator.report.charts import new_figure, save
from simulator.report.contents import Report, label, told_apart
from simulator.report.palette import LIGHT
from simulator.report.units import held_scale, room_around, time_scale
from simulator.sweep import Sweep

LABELS = 8
"""Points on the frontier that are named."""


def draw_frontier(report: Report, sweep: Sweep, path: str) -> None:
    """Write all points, those on the frontier joined, the knee marked."""
    at = [sweep.time_and_cost(index) for index in range(len(sweep.points))]
    times = time_scale(time for time, _ in at)
    held = held_scale((cost for _, cost in at), report.noun)
    divisor = 1.0 if sweep.in_usd else held.divisor
    points = [(time / times.divisor, cost / divisor) for time, cost in at]
    first = sweep.points[0].simulation
    figure = new_figure(8, 5)
    axis = figure.subplots()
    axis.set_title(f"{first.job} on {first.cluster}: {told_apart(sweep)}", fontsize=10, loc="left")
    axis.scatter(
        [x for x, _ in points], [y for _, y in points], s=22, color=LIGHT["cold"], zorder=2
    )
    best = [points[index] for index in sweep.frontier]
    axis.plot(*zip(*best, strict=True), color=LIGHT["busy"], marker="o", markersize=5, zorder=3)
    if sweep.knee is not None:
        x, y = points[sweep.knee]
        axis.scatter([x], [y], s=190, facecolor=LIGHT["idle"], edgecolor=LIGHT["busy"], zorder=4)
    for index in _named(sweep):
        text = label(sweep, index).replace("$", r"\$")
        axis.annotate(
            f"{text} (knee)" if index == sweep.knee else text,
            points[index],
            xytext=(9, 5),
            textcoords="offset points",
            fontsize=8,
        )
    axis.set_xlabel(f"time of the job, {times.unit}", fontsize=9)
    axis.set_ylabel("cost of the job, USD" if sweep.in_usd else f"held, {held.unit}", fontsize=9)
    axis.set_xlim(*room_around([x for x, _ in points]))
    axis.set_ylim(*room_around([y for _, y in points]))
    axis.grid(color="#e3e3e0", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    save(figure, path)


def _named(sweep: Sweep) -> list[int]:
    """The knee and both ends of the frontier at least; every point of a few."""
    if len(sweep.points) <= LABELS:
        return list(range(len(sweep.points)))
    if len(sweep.frontier) <= LABELS:
        return list(sweep.frontier)
    ends = {sweep.frontier[0], sweep.frontier[-1]}
    return sorted(ends if sweep.knee is None else {*ends, sweep.knee})
