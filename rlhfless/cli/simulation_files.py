"""The folder that ``rlhfless simulate`` leaves, and the bar it shows while it takes long."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rlhfless.errors import of_os_error

if TYPE_CHECKING:
    from simulator.report.contents import Report

FOLDER = "simulations"
PATIENCE_S = 1.0
"""How long nothing is shown: most simulations are done by then."""
NAMES = ("simulation.json", "spans.csv", "report.html", "gantt.png", "cost.png", "frontier.png")


class Bar:
    """Progress on a console (None: stderr), if that is a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._bar = Progress(
            TextColumn("{task.fields[what]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, what="")
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self._began_s < PATIENCE_S or not self._bar.console.is_terminal:
            return
        self._bar.start()
        self._bar.update(self._task, what=what, completed=done, total=total)


def write(report: Report, folder: str) -> list[str]:
    """Write everything into ``folder`` and return the names of the files. Those of an earlier
    simulation are replaced. Without matplotlib there are no charts, and no error: the page has
    them too.
    """
    from simulator.report.html import page
    from simulator.report.json_file import dump, dump_spans

    try:
        os.makedirs(folder, exist_ok=True)
        for name in NAMES:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        texts = {
            "simulation.json": dump(report),
            "spans.csv": dump_spans(report),
            "report.html": page(report),
        }
        for name, text in texts.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        _charts(report, folder)
    except OSError as error:
        raise of_os_error(f"cannot write to {folder}", error) from error
    return [name for name in NAMES if os.path.exists(os.path.join(folder, name))]


def _charts(report: Report, folder: str) -> None:
    from simulator.report.charts import draw_cost, draw_gantt, have_matplotlib

    if not have_matplotlib():
        return
    draw_gantt(report, os.path.join(folder, "gantt.png"))
    draw_cost(report, os.path.join(folder, "cost.png"))
    if report.sweep is not None:
        from simulator.report.frontier_chart import draw_frontier

        draw_frontier(report, report.sweep, os.path.join(folder, "frontier.png"))
