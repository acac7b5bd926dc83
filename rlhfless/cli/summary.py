"""What a person is told when a job has ended: what was learned, what it cost, where it lies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_summary(console: Console, folder: str, summary: dict[str, Any]) -> None:
    """What was learned, what it cost, where it lies."""
    console.print()
    print_learned(
        console,
        before=summary["eval_before"],
        after=summary["eval_after"],
        reward=summary["final_metrics"].get("reward/mean"),
        took=f"{summary['steps']} steps, {summary['wall_s']:.0f} s",
    )
    _print_samples(console, summary)
    total_s = sum(summary["function_seconds"].values())
    print_cost(console, summary["usage"], total_s, summary["cost_usd"])
    if summary["weights"] is not None:
        print_weights(console, summary["weights"])
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


def print_learned(
    console: Console,
    *,
    before: float | None,
    after: float | None,
    reward: float | None,
    took: str,
) -> None:
    """``before``, ``after``: accuracies on the held-out set, where there is one."""
    if before is not None and after is not None:
        console.print(
            f"[bold]Learned[/bold]: held-out accuracy {before:.1%} -> {after:.1%} in {took}",
            highlight=False,
        )
    elif reward is not None:
        console.print(f"[bold]Done[/bold]: reward {reward:.3f} after {took}", highlight=False)


def print_cost(
    console: Console,
    functions: Mapping[str, Mapping[str, float]],
    held_s: float,
    usd: float | None,
) -> None:
    """``functions``: seconds by phase (``held_s``, ...), by function."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("function", "held s", "busy s", "idle s", "cold s"):
        table.add_column(name, justify="left" if name == "function" else "right")
    for function, usage in functions.items():
        seconds = (usage[k] for k in ("held_s", "busy_s", "idle_s", "cold_s"))
        table.add_row(function, *(f"{value:.1f}" for value in seconds))
    price = "no price known" if usd is None else f"{usd:.4f} USD"
    console.print()
    console.print(f"[bold]Cost[/bold]: {held_s:.0f} function-seconds ({price})", highlight=False)
    console.print(table)


def print_weights(console: Console, folder: str) -> None:
    shown = os.path.relpath(folder)
    console.print("\n[bold]Weights[/bold]", highlight=False)
    console.print(
        f"  from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"  model = AutoModelForCausalLM.from_pretrained({shown!r})\n"
        f"  tokenizer = AutoTokenizer.from_pretrained({shown!r})",
        highlight=False,
        markup=False,
        soft_wrap=True,  # to be copied
    )
