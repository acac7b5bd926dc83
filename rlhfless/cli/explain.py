"""``rlhfless explain``: why a step's rollout was run the way it was."""

from __future__ import annotations

import json
import os
from typing import Any

from rich.console import Console
from rich.table import Table

from rlhfless.errors import UserError

NEAREST = 12
"""Alternatives shown: those with the lowest scores, and the chosen one."""


def show_plan(folder: str, step: int | None) -> None:
    """Print the plan of ``step`` (counted from 1; None: the newest) of the run in ``folder``."""
    plans = _plans(folder)
    number = max(plans) if step is None else step
    if number not in plans:
        raise UserError(
            f"{folder} has no plan of step {number}; it has steps {min(plans)} to {max(plans)}",
            param="--step",
        )
    console = Console(highlight=False, soft_wrap=True)
    plan = plans[number]
    if not plan.get("actors"):
        console.print(f"step {number}: every sample was there when the step was taken over")
        return
    console.print(
        f"[bold]step {number}[/bold]: {plan['actors']} actors, {plan['strategy']}\n"
        f"  {plan['reason']}"
    )
    _print_alternatives(console, plan)
    _print_prefixes(console, plan.get("prefix") or {})
    _print_outcome(console, plan)


def _plans(folder: str) -> dict[int, dict[str, Any]]:
    path = os.path.join(folder, "plans.jsonl")
    try:
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
    except FileNotFoundError:
        hint = "name the folder of a run, such as runs/quickstart"
        if os.path.exists(os.path.join(folder, "job.yaml")):
            hint = "plans are written as steps are committed: wait for the first"
        raise UserError(f"{folder} holds no plans", hint=hint) from None
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if not rows:
        raise UserError(f"{folder} has no committed step yet", hint="wait for the first")
    return {int(row["step"]): row for row in rows}


def _print_alternatives(console: Console, plan: dict[str, Any]) -> None:
    alternatives = [a for a in plan["alternatives"] if a["score"] is not None]
    if not alternatives:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "actors", "assignment", "seconds", "function-s", "score"):
        table.add_column(name, justify="left" if name in ("", "assignment") else "right")
    ranked = sorted(alternatives, key=lambda a: (not a.get("chosen"), float(a["score"])))
    distinct = {_row(a): a for a in reversed(ranked)}  # ways that come to the same are one
    shown = sorted(distinct.values(), key=lambda a: float(a["score"]))[:NEAREST]
    best = next((a for a in distinct.values() if a.get("chosen")), shown[0])
    if best not in shown:  # lower scores may be too slow (objective.max_slowdown)
        shown[-1] = best
    for a in sorted(shown, key=lambda a: (a["actors"], a["score"])):
        table.add_row("->" if a is best else "", *_row(a))
    console.print(table)
    if len(distinct) > len(shown):
        console.print(f"  ({len(shown)} of {len(distinct)} alternatives, by score)")


def _row(a: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(a["actors"]),
        a["strategy"],
        f"{a['seconds']:.3f}",
        f"{a['function_seconds']:.3f}",
        f"{a['score']:.4f}",
    )


def _print_prefixes(console: Console, prefix: dict[str, Any]) -> None:
    if prefix:
        console.print(f"[bold]shared prompts[/bold]: {prefix['reason']}")


def _print_outcome(console: Console, plan: dict[str, Any]) -> None:
    outcome = plan.get("outcome")
    if not outcome:
        return
    predicted = outcome.get("predicted_s")
    said = "" if predicted is None else f", {predicted:.3f} s predicted"
    console.print(
        f"[bold]outcome[/bold]: rollout {outcome['seconds']:.3f} s{said}; "
        f"{outcome['moved']} samples moved, {outcome['released']} instances let go early"
    )
