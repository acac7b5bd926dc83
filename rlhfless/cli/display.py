"""The live table of a job, run here or watched at the service."""

from __future__ import annotations

import time
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table

ROWS = 12
"""Steps shown; earlier ones are in metrics.jsonl, or what ``rlhfless metrics`` prints."""

PHASES = {
    "start": "starting functions",
    "evaluate": "evaluating the held-out set",
    "rollout": "rollout, rewards",
    "train": "training",
    "export": "writing the final model",
}
_COLUMNS = {
    "step": ("step", ".0f"),
    "reward": ("reward/mean", ".3f"),
    "length": ("response_length/mean", ".1f"),
    "longest": ("response_length/max", ".0f"),
    "actors": ("rollout/actors", ".0f"),
    "idle": ("functions/idle_fraction", ".0%"),
    "fn-s": ("functions/held_s", ".1f"),
    "s/step": ("time/step_s", ".2f"),
}
"""By heading: a metric, and how it is written."""


def cells(metrics: dict[str, float]) -> list[str]:
    """A step's row under the headings of ``steps_table``."""
    return [
        format(metrics[name], style) if name in metrics else "-"
        for name, style in _COLUMNS.values()
    ]


def steps_table() -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    return table


class Display:
    """Draws while it is entered; on a terminal a live table, elsewhere a line a step."""

    def __init__(self, console: Console, total_steps: int | None) -> None:
        self.total_steps = total_steps or 0
        self.phase = PHASES["start"]
        """What the job does now, in words."""
        self.left_s: float | None = None
        """Until its end, if somebody knows better than its steps tell."""
        self.steps_done = 0
        self._console = console
        self._rows: list[dict[str, float]] = []
        self._held_s = 0.0
        self._began_s = time.monotonic()
        self._stepping_since_s: float | None = None
        self._restored = 0
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=8, transient=False
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            self.phase = ""
            self._live.stop()

    def entered(self, state: str) -> None:
        """The job is in another state."""
        self.phase = state
        if not self._live.is_started:
            self.say(state)

    def ran_for(self, wall_s: float) -> None:
        """The job has been running for so long; by default, since this was made."""
        self._began_s = time.monotonic() - wall_s

    def stepping(self) -> None:
        """Its steps have begun."""
        if self._stepping_since_s is None:
            self._stepping_since_s = time.monotonic()

    def step(self, metrics: dict[str, float], *, restored: bool = False) -> None:
        """A committed step; ``restored``: by an earlier run."""
        self.steps_done = int(metrics["step"])
        self._held_s += metrics.get("functions/held_s", 0.0)
        self._rows = [*self._rows, metrics][-ROWS:]
        if restored:
            self._restored += 1
        elif not self._live.is_started:
            self.say(self._line(metrics))

    def evaluated(self, step: int, accuracy: float) -> None:
        when = "before training" if step == 0 else f"after step {step}"
        self.say(f"held-out accuracy {when}: {accuracy:.1%}")

    def say(self, text: str) -> None:
        """A line above the table."""
        self._console.print(escape(text), highlight=False, soft_wrap=True)

    def _line(self, metrics: dict[str, float]) -> str:
        step, reward, length, longest, actors, idle, held, took = cells(metrics)
        return (
            f"step {step}/{self.total_steps or '?'}  reward {reward}  "
            f"length {length} (max {longest})  actors {actors}  idle {idle}  "
            f"function-seconds {held}  {took} s"
        )

    def _render(self) -> Group:
        table = steps_table()
        for metrics in self._rows:
            table.add_row(*cells(metrics))
        parts: list[Any] = [table] if self._rows else []
        if self.phase:
            parts.append(Spinner("dots", escape(self._status())))
        return Group(*parts)

    def _status(self) -> str:
        elapsed = time.monotonic() - self._began_s
        status = f"{self.phase}  step {self.steps_done}/{self.total_steps or '?'}"
        status += f"  {elapsed:.0f} s  {self._held_s:.0f} function-seconds"
        left_s = self.left_s if self.left_s is not None else self._estimated_left_s()
        return status if left_s is None else f"{status}  about {left_s:.0f} s left"

    def _estimated_left_s(self) -> float | None:
        done = self.steps_done - self._restored
        if self._stepping_since_s is None or done <= 0:
            return None
        per_step = (time.monotonic() - self._stepping_since_s) / done
        return max(0, self.total_steps - self.steps_done) * per_step
