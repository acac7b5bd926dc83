"""The live table of a run, and the summary at its end."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table

from rlhfless.spec import JobSpec

if TYPE_CHECKING:
    from controller.job import Event

ROWS = 12
"""Steps shown; earlier ones are in metrics.jsonl."""

_PHASES = {
    "start": "starting functions",
    "evaluate": "evaluating the held-out set",
    "rollout": "rollout, rewards",
    "train": "training",
    "export": "writing the final model",
}


class Display:
    """Draws while it is entered; on a terminal a live table, elsewhere a line a step."""

    def __init__(self, console: Console, spec: JobSpec) -> None:
        self._console = console
        self._spec = spec
        self._rows: list[dict[str, float]] = []
        self._held_s = 0.0
        self._phase = _PHASES["start"]
        self._actors = 0
        self._total_steps = spec.training.steps or 0
        self._began_s = time.monotonic()
        self._stepping_since_s: float | None = None
        self._restored = 0
        self.steps_done = 0
        self.began = False
        """Whether anything was generated that a resumed run would go on from."""
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=8, transient=False
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            self._phase = ""
            self._live.stop()

    def observe(self, event: Event) -> None:
        if event.kind == "plan":
            self._total_steps = event.data["total_steps"]
        elif event.kind in ("step", "restored"):
            self._step(event.data["metrics"], restored=event.kind == "restored")
        elif event.kind == "evaluated":
            self.began = True
            self._evaluated(event)
        elif event.kind == "notice":
            self._say(escape(event.message))
        if event.kind in _PHASES:
            self._phase = _PHASES[event.kind]
            self._actors = event.data.get("actors", self._actors)
            if event.kind == "rollout" and self._stepping_since_s is None:
                self.began = True
                self._stepping_since_s = time.monotonic()

    def _step(self, metrics: dict[str, float], *, restored: bool) -> None:
        self.steps_done = int(metrics["step"])
        self._held_s += metrics["functions/held_s"]
        self._rows = [*self._rows, metrics][-ROWS:]
        if restored:
            self._restored += 1
        elif not self._live.is_started:
            self._say(self._line(metrics))

    def _evaluated(self, event: Event) -> None:
        accuracy = event.data["evaluation"].accuracy
        step = event.data["step"]
        when = "before training" if step == 0 else f"after step {step}"
        self._say(f"held-out accuracy {when}: {accuracy:.1%}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def _line(self, m: dict[str, float]) -> str:
        return (
            f"step {m['step']:.0f}/{self._total_steps}  reward {m['reward/mean']:.3f}  "
            f"length {m['response_length/mean']:.1f} (max {m['response_length/max']:.0f})  "
            f"actors {m['rollout/actors']:.0f}  idle {m['functions/idle_fraction']:.0%}  "
            f"function-seconds {m['functions/held_s']:.1f}  {m['time/step_s']:.2f} s"
        )

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("step", "reward", "length", "longest", "actors", "idle", "fn-s", "s/step"):
            table.add_column(name, justify="right")
        for m in self._rows:
            table.add_row(
                f"{m['step']:.0f}",
                f"{m['reward/mean']:.3f}",
                f"{m['response_length/mean']:.1f}",
                f"{m['response_length/max']:.0f}",
                f"{m['rollout/actors']:.0f}",
                f"{m['functions/idle_fraction']:.0%}",
                f"{m['functions/held_s']:.1f}",
                f"{m['time/step_s']:.2f}",
            )
        parts: list[Any] = [table] if self._rows else []
        if self._phase:
            parts.append(Spinner("dots", escape(self._status())))
        return Group(*parts)

    def _status(self) -> str:
        elapsed = time.monotonic() - self._began_s
        status = f"{self._phase}  step {self.steps_done}/{self._total_steps or '?'}"
        status += f"  {elapsed:.0f} s  {self._held_s:.0f} function-seconds"
        done = self.steps_done - self._restored
        if self._stepping_since_s is not None and done > 0:
            per_step = (time.monotonic() - self._stepping_since_s) / done
            left = max(0, self._total_steps - self.steps_done) * per_step
            status += f"  about {left:.0f} s left"
        return status


def print_summary(console: Console, folder: str, summary: dict[str, Any]) -> None:
    """What was learned, what it cost, where it lies."""
    console.print()
    before, after = summary["eval_before"], summary["eval_after"]
    if before is not None and after is not None:
        console.print(
            f"[bold]Learned[/bold]: held-out accuracy {before:.1%} -> {after:.1%} "
            f"in {summary['steps']} steps, {summary['wall_s']:.0f} s",
            highlight=False,
        )
    elif summary["final_metrics"]:
        reward = summary["final_metrics"]["reward/mean"]
        console.print(
            f"[bold]Done[/bold]: reward {reward:.3f} after {summary['steps']} steps, "
            f"{summary['wall_s']:.0f} s",
            highlight=False,
        )
    _print_samples(console, summary)
    _print_cost(console, summary)
    weights = summary["weights"]
    if weights is not None:
        shown = os.path.relpath(weights)
        console.print("\n[bold]Weights[/bold]", highlight=False)
        console.print(
            f"  from transformers import AutoModelForCausalLM, AutoTokenizer\n"
            f"  model = AutoModelForCausalLM.from_pretrained({shown!r})\n"
            f"  tokenizer = AutoTokenizer.from_pretrained({shown!r})",
            highlight=False,
            markup=False,
            soft_wrap=True,  # to be copied
        )
    console.print(
        f"\nEverything else is in {os.path.relpath(folder)}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _print_samples(console: Console, summary: dict[str, Any]) -> None:
    pairs = list(zip(summary["samples_before"], summary["samples_after"], strict=False))
    if not pairs:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("prompt", "before", "reward", "after", "reward"):
        table.add_column(name, overflow="fold")
    for old, new in pairs:
        prompt = old["prompt"]
        shown = prompt if isinstance(prompt, str) else str(prompt[-1].get("content", ""))
        table.add_row(
            escape(shown),
            escape(old["completion"]),
            f"{old['reward']:.2f}",
            escape(new["completion"]),
            f"{new['reward']:.2f}",
        )
    console.print()
    console.print(table)


def _print_cost(console: Console, summary: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("function", "held s", "busy s", "idle s", "cold s"):
        table.add_column(name, justify="left" if name == "function" else "right")
    for function, usage in summary["usage"].items():
        seconds = (usage[k] for k in ("held_s", "busy_s", "idle_s", "cold_s"))
        table.add_row(function, *(f"{value:.1f}" for value in seconds))
    cost = summary["cost_usd"]
    price = "no price known" if cost is None else f"{cost:.4f} USD"
    total = sum(summary["function_seconds"].values())
    console.print()
    console.print(f"[bold]Cost[/bold]: {total:.0f} function-seconds ({price})", highlight=False)
    console.print(table)
