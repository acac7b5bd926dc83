"""Charts as PNG, by matplotlib (the extra ``plot``), which is loaded when the first is drawn."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rlhfless.errors import UserError
from simulator.report.contents import PHASES, Report, by_function
from simulator.report.palette import LABELS, LIGHT
from simulator.report.timeline import BINS, Timeline, timeline
from simulator.report.units import held_scale, price, time_scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INSTALL = "pip install 'matplotlib>=3.8' (the extra `plot`)"
DPI = 130
_GRID = "#d9d9d6"
_SPOT = "////"


def have_matplotlib() -> bool:
    return find_spec("matplotlib") is not None


def new_figure(width_in: float, height_in: float) -> Figure:
    """Raises ``UserError`` where matplotlib is not installed."""
    if not have_matplotlib():
        raise UserError("charts need matplotlib, which is not installed", hint=INSTALL)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str) -> None:
    figure.savefig(path, dpi=DPI, metadata={"Software": None})


def draw_gantt(report: Report, path: str) -> None:
    """Write what instances do over the window: a panel a simulation, on one scale of time."""
    drawn = [(one, timeline(one)) for one in report.simulations]
    panels = [(one, found) for one, found in drawn if found is not None]
    heights = [_height(found) for _, found in panels] or [1.0]
    figure = new_figure(10, sum(heights) + 0.55 * len(heights) + 0.7)
    if not panels:
        figure.text(0.5, 0.5, "no instance was held", ha="center")
        save(figure, path)
        return
    axes = figure.subplots(
        len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    scale = time_scale(found.seconds for _, found in panels)
    for axis, (one, found) in zip(axes[:, 0], panels, strict=True):
        axis.set_title(f"{one.job} on {one.cluster}, {one.strategy}", fontsize=9, loc="left")
        (_draw_lanes if found.lanes else _draw_areas)(axis, found, scale.divisor)
        axis.grid(axis="x", color=_GRID, linewidth=0.6)
        _plain(axis)
    axes[-1, 0].set_xlabel(f"{scale.unit} of the simulation", fontsize=8)
    axes[-1, 0].set_xlim(0, max(found.seconds for _, found in panels) / scale.divisor)
    figure.legend(
        handles=_legend(any(found.spot and found.lanes for _, found in panels)),
        loc="outside lower center",
        ncols=4,
        fontsize=8,
        frameon=False,
    )
    save(figure, path)


def _height(found: Timeline) -> float:
    """Inches of a panel."""
    return max(0.8, 0.16 * len(found.lanes)) if found.lanes else 1.1 * len(found.areas)


def _draw_lanes(axis: Any, found: Timeline, divisor: float) -> None:
    rows: dict[str, list[int]] = {}
    for row, lane in enumerate(found.lanes):
        rows.setdefault(lane.function, []).append(row)
        for phase in PHASES:
            for spot in (False, True):
                bars = [
                    (bar.start_s / divisor, (bar.end_s - bar.start_s) / divisor)
                    for bar in lane.bars
                    if bar.phase == phase and bar.spot == spot
                ]
                look = {"hatch": _SPOT, "edgecolor": "white", "linewidth": 0.0} if spot else {}
                if bars:
                    axis.broken_barh(bars, (row - 0.42, 0.84), facecolor=LIGHT[phase], **look)
    for numbers in list(rows.values())[1:]:
        axis.axhline(numbers[0] - 0.5, color="#666666", linewidth=0.6)
    ticks = [sum(numbers) / len(numbers) for numbers in rows.values()]
    axis.set_yticks(ticks, list(rows), fontsize=8)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(len(found.lanes) - 0.4, -0.6)


def _draw_areas(axis: Any, found: Timeline, divisor: float) -> None:
    """Functions one above the other, each on a scale of its own."""
    edges = [found.seconds / divisor * each / BINS for each in range(BINS + 1)]
    ticks = []
    for base, area in enumerate(reversed(found.areas)):
        below = [float(base)] * BINS
        for phase in PHASES:
            highs = 0.88 * area.by_phase[phase] / area.peak
            above = [low + high for low, high in zip(below, highs, strict=True)]
            axis.stairs(above, edges, baseline=below, fill=True, facecolor=LIGHT[phase])
            below = above
        axis.axhline(base, color="#666666", linewidth=0.6)
        ticks.append((base + 0.44, f"{area.function}\nup to {area.peak:,.0f}"))
    axis.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=8)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(0, len(found.areas))


def _legend(spot: bool) -> list[Any]:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=LIGHT[phase], label=LABELS[phase]) for phase in PHASES]
    if spot:
        handles.append(Patch(facecolor=LIGHT["busy"], hatch=_SPOT, edgecolor="white", label="spot"))
    return handles


def draw_cost(report: Report, path: str) -> None:
    """Write accelerator time by function and phase, with what it costs; a group a simulation."""
    groups = [
        (one, [(name, use) for name, use in by_function(one).items() if use.accelerators])
        for one in report.simulations
    ]
    num_bars = sum(len(uses) for _, uses in groups)
    figure = new_figure(9, 1.3 + 0.3 * num_bars + 0.35 * len(groups))
    axis = figure.subplots()
    scale = held_scale((one.held_s for one in report.simulations), report.noun)
    row, ticks = 0.0, []
    for one, uses in groups:
        told = f"{one.strategy}: {scale.tell(one.held_s)}, {_dollars(one.usd)}"
        axis.text(0, row, told, fontsize=9, fontweight="bold", va="center")
        row += 1
        for name, use in uses:
            left = 0.0
            for phase, seconds in zip(PHASES, (use.busy_s, use.idle_s, use.cold_s), strict=True):
                wide = seconds / scale.divisor
                axis.barh(row, wide, left=left, height=0.78, color=LIGHT[phase])
                left += wide
            axis.text(left, row, f"  {_dollars(use.usd)}", fontsize=8, va="center", color="#555555")
            ticks.append((row, name))
            row += 1
        row += 0.4
    axis.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=8)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(row - 0.5, -0.6)
    axis.set_xlabel(scale.unit, fontsize=8)
    axis.margins(x=0.12)
    axis.set_xlim(left=0)
    axis.grid(axis="x", color=_GRID, linewidth=0.6)
    _plain(axis)
    figure.legend(
        handles=_legend(spot=False), loc="outside lower center", ncols=3, fontsize=8, frameon=False
    )
    save(figure, path)


def _dollars(value: float | None) -> str:
    """Matplotlib would take a dollar sign for mathematics."""
    return price(value).replace("$", r"\$")


def _plain(axis: Any) -> None:
    axis.set_axisbelow(True)
    axis.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
