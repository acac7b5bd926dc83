"""Instances over time: what was held, and what of it was used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.ledger import Span

_COLORS = {
    "rollout": "tab:blue",
    "reward": "tab:green",
    "reference": "tab:olive",
    "training": "tab:red",
}


@dataclass(frozen=True)
class Chart:
    """One panel: ``spans`` of a step that began at ``start_s`` and took ``seconds``."""

    title: str
    spans: Sequence[Span]
    start_s: float
    seconds: float


def draw(charts: Sequence[Chart], path: str) -> None:
    """Write a PNG, one panel above the other on one scale of time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    rows = [_rows(chart.spans) for chart in charts]
    figure, axes = pyplot.subplots(
        len(charts),
        1,
        sharex=True,
        squeeze=False,
        figsize=(10, 0.9 * len(charts) + 0.17 * sum(map(len, rows))),
        gridspec_kw={"height_ratios": [len(names) + 1 for names in rows]},
        layout="constrained",
    )
    for chart, names, axis in zip(charts, rows, axes[:, 0], strict=True):
        for span in chart.spans:
            row, left = names.index(span.instance), span.start_s - chart.start_s
            look = _look(span)
            axis.barh(row, span.end_s - span.start_s, left=left, height=0.8, **look)
        axis.axvline(chart.seconds, color="black", linewidth=0.8)
        axis.set_yticks(range(len(names)), names, fontsize=6)
        axis.invert_yaxis()
        axis.set_title(chart.title, fontsize=9, loc="left")
    axes[-1, 0].set_xlabel("seconds of the step (paced)")
    legend = [Patch(color=color, label=f"{name}, busy") for name, color in _COLORS.items()]
    legend += [
        Patch(color="lightgray", label="held, idle"),
        Patch(facecolor="white", edgecolor="gray", hatch="////", label="starting"),
    ]
    figure.legend(handles=legend, loc="outside lower center", ncols=6, fontsize=7)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _rows(spans: Sequence[Span]) -> list[str]:
    """Instances by function, in the order in which they were started."""
    order = list(_COLORS)
    found = {
        (order.index(s.function), int(s.instance.rsplit("-", 1)[1]), s.instance) for s in spans
    }
    return [name for _, _, name in sorted(found)]


def _look(span: Span) -> dict[str, str]:
    if span.phase == "busy":
        return {"color": _COLORS[span.function]}
    if span.phase == "idle":
        return {"color": "lightgray"}
    return {"facecolor": "white", "edgecolor": "gray", "hatch": "////"}
