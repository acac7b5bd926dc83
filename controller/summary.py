"""What a run leaves for a person: ``summary.json`` and a plot of what was learned."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from controller.evaluation import Evaluation
from controller.job_store import StepRecord
from controller.ledger import Usage
from controller.orchestrator import Outcome
from controller.run_folder import RunFolder
from rlhfless.errors import of_os_error


def write_summary(
    folder: RunFolder, outcome: Outcome, records: Sequence[StepRecord]
) -> dict[str, Any]:
    """Write and return ``summary.json``. ``cost_usd`` is null where a price is unknown."""
    total = sum(outcome.usage.values(), Usage())
    summary: dict[str, Any] = {
        "status": outcome.status,
        "reason": outcome.reason,
        "steps": outcome.steps,
        "eval_before": None if outcome.before is None else outcome.before.accuracy,
        "eval_after": None if outcome.after is None else outcome.after.accuracy,
        "evaluations": {str(step): value for step, value in sorted(outcome.accuracy.items())},
        "wall_s": outcome.wall_s,
        "function_seconds": {name: usage.held_s for name, usage in outcome.usage.items()},
        "usage": {name: _seconds(usage) for name, usage in outcome.usage.items()},
        "idle_fraction": total.idle_fraction,
        "cost_usd": total.usd,
        "final_metrics": records[-1].metrics if records else {},
        "weights": folder.file("weights") if outcome.status == "succeeded" else None,
        "samples_before": _samples(outcome.before),
        "samples_after": _samples(outcome.after),
    }
    folder.write("summary.json", json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return summary


def write_failure(
    folder: RunFolder, status: str, problem: dict[str, Any], steps: int, eval_before: float | None
) -> None:
    """``summary.json`` of a run that did not end by itself (``status`` failed or interrupted): the
    same names, null where the end was not reached. The summary of a success stays."""
    path = folder.file("summary.json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            if json.load(file).get("status") == "succeeded":
                return
    summary = {
        "status": status,
        "reason": problem.get("detail", status),
        "steps": steps,
        "eval_before": eval_before,
        "eval_after": None,
        "wall_s": None,
        "function_seconds": None,
        "cost_usd": None,
        "weights": None,
        "error": problem,
    }
    folder.write("summary.json", json.dumps(summary, indent=2, ensure_ascii=False) + "\n")


def write_plot(folder: RunFolder, records: Sequence[StepRecord]) -> str | None:
    """``progress.png``: reward and response length over the steps. None without matplotlib (the
    extra ``plot``) or without a step to show."""
    if not records:
        return None
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    steps = [record.step + 1 for record in records]

    def series(name: str) -> list[float]:
        return [record.metrics.get(name, float("nan")) for record in records]

    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    reward, length = figure.subplots(2, 1, sharex=True)
    reward.plot(steps, series("reward/mean"), color="#2f6fab", marker=".")
    reward.set_ylabel("mean reward")
    reward.grid(alpha=0.3)
    length.plot(steps, series("response_length/mean"), color="#2f6fab", marker=".", label="mean")
    length.plot(steps, series("response_length/max"), color="#c46a2b", marker=".", label="longest")
    length.set_ylabel("response length (tokens)")
    length.set_xlabel("step")
    length.set_ylim(bottom=0)
    length.grid(alpha=0.3)
    length.legend(frameon=False)
    path = folder.file("progress.png")
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise of_os_error(f"cannot write {path}", error) from error
    return path


def _seconds(usage: Usage) -> dict[str, float | None]:
    return {
        "held_s": usage.held_s,
        "busy_s": usage.busy_s,
        "idle_s": usage.idle_s,
        "cold_s": usage.cold_s,
        "usd": usage.usd,
    }


def _samples(evaluation: Evaluation | None) -> list[dict[str, Any]]:
    return [] if evaluation is None else msgspec.to_builtins(evaluation.samples)
