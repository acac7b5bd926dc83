"""``rlhfless logs``, ``usage``, ``metrics``, ``rollouts``, ``download``: what a job leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlhfless import rest
from rlhfless.cli.display import cells, steps_table
from rlhfless.cli.service import connect, console, print_json, print_list, working
from rlhfless.cli.summary import print_cost, print_weights


def print_logs(name: str, follow: bool, as_json: bool) -> None:
    with connect() as client:
        for line in client.jobs.logs(client.jobs.find(name), follow=follow):
            if as_json:
                print_json(line)
            else:
                at = datetime.fromtimestamp(line.created_at).strftime("%H:%M:%S")
                typer.echo(f"{at} {line.source} | {line.text}")


def show_usage(name: str, steps: bool, as_json: bool) -> None:
    with connect() as client:
        usage = client.jobs.usage(client.jobs.find(name))
    if as_json:
        print_json(usage)
        return
    shown = console()
    if steps:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("step", "function", "held s", "busy s", "idle s", "cold s"):
            table.add_column(heading, justify="left" if heading == "function" else "right")
        for step in usage.data:
            for function, spent in step.functions.items():
                seconds = (spent.held_s, spent.busy_s, spent.idle_s, spent.cold_s)
                table.add_row(str(step.step), function, *(f"{value:.1f}" for value in seconds))
        shown.print(table)
    show_cost(shown, usage)


def show_cost(shown: Console, usage: rest.Usage) -> None:
    functions = {name: spent.model_dump() for name, spent in usage.functions.items()}
    print_cost(shown, functions, usage.total.held_s, usage.total.usd)


def show_metrics(name: str, names: Sequence[str], as_json: bool) -> None:
    with connect() as client:
        steps = client.jobs.metrics(client.jobs.find(name))
        if not as_json and not names:
            table = steps_table()
            for step in steps:
                table.add_row(*cells(step.metrics))
            console().print(table)
            return
        if names:
            steps = (_only(step, names) for step in steps)
        print_list(
            steps,
            as_json,
            lambda step: (step.id, *(_number(step.metrics.get(each)) for each in names)),
            ("step", *names),
            empty="no step is committed yet",
        )


def _only(step: rest.StepMetrics, names: Sequence[str]) -> rest.StepMetrics:
    kept = {name: value for name, value in step.metrics.items() if name in names}
    return step.model_copy(update={"metrics": kept})


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def show_rollouts(
    name: str, step: int | None, sort: Any, limit: int, tokens: bool, as_json: bool
) -> None:
    shown = console()
    with connect() as client:
        job = client.jobs.find(name)
        found = client.jobs.rollouts(job, step=step, sort=sort, tokens=tokens)
        for sample in islice(found, limit):
            if as_json:
                print_json(sample)
            else:
                _print_sample(shown, sample)


def _print_sample(shown: Console, sample: rest.Rollout) -> None:
    parts = ", ".join(f"{name} {_number(value)}" for name, value in sample.rewards.items())
    shown.print(
        f"[bold]{sample.reward:.3f}[/bold]  ({escape(parts)})  step {sample.step}, "
        f"{sample.num_tokens} tokens, {escape(sample.finish_reason)}  [dim]{sample.id}[/dim]",
        soft_wrap=True,
    )
    for text in (_prompt(sample.prompt), sample.completion):
        shown.print(text, markup=False, soft_wrap=True)
    if sample.tokens is not None:
        pairs = (f"{token.text!r} {_number(token.logprob)}" for token in sample.tokens)
        shown.print("  ".join(pairs), markup=False, style="dim", soft_wrap=True)
    shown.print()


def _prompt(prompt: Any) -> str:
    """A string, or chat messages."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(isinstance(each, dict) for each in prompt):
        return "\n".join(f"{each.get('role')}: {each.get('content')}" for each in prompt)
    return json.dumps(prompt, ensure_ascii=False)


def download_weights(name: str, out: str, step: int | None, as_json: bool) -> None:
    with connect() as client, working(f"downloading to {out}"):
        job = client.jobs.find(name)
        folder = client.jobs.download(job, out, step=step)
    if as_json:
        typer.echo(json.dumps({"job": job.id, "folder": folder}))
    else:
        print_weights(console(), folder)
