"""What a run leaves for a person: ``summary.json`` and a plot of what was learned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from controller.evaluation import Evaluation
from controller.journal import StepRecord
from controller.known import Known
from controller.ledger import Usage
from controller.orchestrator import Outcome
from controller.run_folder import RunFolder
from rlhfless.errors import of_os_error
from rlhfless.messages import FunctionName


def write_summary(
    folder: RunFolder, outcome: Outcome, records: Sequence[StepRecord]
) -> dict[str, Any]:
    """Write and return ``summary.json``. ``cost_usd`` is null where a price is unknown."""
    summary: dict[str, Any] = {
        "status": outcome.status,
        "reason": outcome.reason,
        "steps": outcome.steps,
        **_learned(outcome.before, outcome.after, outcome.accuracy),
        **_spent(outcome.usage, outcome.wall_s),
        "final_metrics": records[-1].metrics if records else {},
        "weights": folder.file("weights") if outcome.status == "succeeded" else None,
    }
    _write(folder, summary)
    return summary


def write_failure(folder: RunFolder, status: str, problem: dict[str, Any], known: Known) -> None:
    """``summary.json`` of a run that did not end by itself (``status`` failed or interrupted): the
    same names with what is known so far, null where nothing is. The summary of a success stays."""
    earlier = _read(folder)
    if earlier.get("status") == "succeeded":
        return
    reason = problem.get("detail", status)
    evaluations, records = known.evaluations, known.records or []
    summary = {
        "status": status,
        "reason": reason,
        "steps": len(records),
        **_learned(
            evaluations.get(0),
            None if known.total_steps is None else evaluations.get(known.total_steps),
            {steps: found.accuracy for steps, found in evaluations.items()},
        ),
        **_spent(known.usage, known.wall_s),
        "final_metrics": records[-1].metrics if records else {},
        "weights": None,
        "error": problem,
    }
    if known.records is None and not folder.fresh:  # the journal was out of reach
        summary |= earlier | {"status": status, "reason": reason, "error": problem}
    _write(folder, summary)


def write_plot(folder: RunFolder, records: Sequence[StepRecord]) -> bool:
    """``progress.png``: reward and response length over the steps (at least one). False, and no
    plot, without matplotlib (the extra ``plot``)."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
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
    return True


def _learned(
    before: Evaluation | None, after: Evaluation | None, accuracy: Mapping[int, float]
) -> dict[str, Any]:
    return {
        "eval_before": None if before is None else before.accuracy,
        "eval_after": None if after is None else after.accuracy,
        "evaluations": {str(steps): value for steps, value in sorted(accuracy.items())},
        "samples_before": _samples(before),
        "samples_after": _samples(after),
    }


def _spent(usage: Mapping[FunctionName, Usage] | None, wall_s: float | None) -> dict[str, Any]:
    if usage is None:
        names = ("wall_s", "function_seconds", "usage", "idle_fraction", "cost_usd")
        return dict.fromkeys(names)
    total = sum(usage.values(), Usage())
    return {
        "wall_s": wall_s,
        "function_seconds": {name: spent.held_s for name, spent in usage.items()},
        "usage": {name: _seconds(spent) for name, spent in usage.items()},
        "idle_fraction": total.idle_fraction,
        "cost_usd": total.usd,
    }


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


def _read(folder: RunFolder) -> dict[str, Any]:
    """The summary of the run before; empty if there is none that can be read."""
    try:
        with open(folder.file("summary.json"), encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(folder: RunFolder, summary: dict[str, Any]) -> None:
    folder.write("summary.json", json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
