"""``rlhfless list``, ``show``, ``cancel``, ``pause``, ``resume``, ``delete``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, get_args

import typer
from rich.markup import escape

from rlhfless import rest
from rlhfless.cli.service import connect, console, print_json, print_list
from rlhfless.errors import UserError

STATES = get_args(rest.State)


def list_jobs(states: str | None, limit: int, as_json: bool) -> None:
    wanted = _states(states)
    with connect() as client:
        print_list(
            (job for job in client.jobs.list() if job.state in wanted),
            as_json,
            _row,
            ("id:", "name:", "state:", "step", "reward", "fn-s", "usd", "age"),
            limit=limit,
            empty="there are no jobs" if states is None else f"no job is {states}",
        )


def show_job(name: str, as_json: bool) -> None:
    with connect() as client:
        job = client.jobs.find(name)
    if as_json:
        print_json(job)
        return
    shown = console()
    for label, text in _described(job):
        shown.print(f"[bold]{label:<10}[/bold] {escape(text)}", soft_wrap=True)


def steer(
    name: str,
    how: Literal["cancel", "pause", "resume"],
    as_json: bool,
    budget: Mapping[str, Any] | None = None,
) -> None:
    with connect() as client:
        job = client.jobs.find(name)
        match how:
            case "cancel":
                job = client.jobs.cancel(job)
            case "pause":
                job = client.jobs.pause(job)
            case "resume":
                job = client.jobs.resume(job, budget=budget)
    if as_json:
        print_json(job)
    else:
        typer.echo(f"{job.id} is {job.state}")


def delete_job(name: str, sure: bool, as_json: bool) -> None:
    """Without ``sure`` it asks first."""
    with connect() as client:
        job = client.jobs.find(name)
        if not sure:
            left = f"{job.name}, {job.state}, {_steps(job.progress)} steps"
            question = f"delete {job.id} ({left}) with its weights, samples and logs?"
            typer.confirm(question, abort=True, err=True)
        client.jobs.delete(job)
    if as_json:
        print_json(job)
    else:
        typer.echo(f"{job.id} is deleted")


def _states(text: str | None) -> tuple[str, ...]:
    if text is None:
        return STATES
    given = tuple(part.strip() for part in text.split(","))
    if wrong := set(given) - set(STATES):
        raise UserError(
            f"{min(wrong)!r} is no state", param="--state", hint=f"states: {', '.join(STATES)}"
        )
    return given


def _row(job: rest.Job) -> tuple[str, ...]:
    progress = job.progress
    return (
        job.id,
        job.name,
        job.state,
        _steps(progress),
        "-" if progress.reward is None else f"{progress.reward:.3f}",
        f"{progress.spent.held_s:.0f}",
        "-" if progress.spent.usd is None else f"{progress.spent.usd:.2f}",
        duration(time.time() - job.created_at),
    )


def _described(job: rest.Job) -> list[tuple[str, str]]:
    progress, spent = job.progress, job.progress.spent
    now = f", {progress.phase}" if progress.phase else ""
    money = "no price known" if spent.usd is None else f"{spent.usd:.4f} USD"
    found = [
        ("id", job.id),
        ("name", job.name),
        ("state", job.state + (f": {job.reason}" if job.reason else "")),
        ("step", _steps(progress) + now),
        ("took", f"{duration(progress.wall_s)}, {spent.held_s:.0f} function-seconds ({money})"),
    ]
    if progress.reward is not None:
        found.append(("reward", f"{progress.reward:.3f}"))
    if job.forecast is not None and job.state not in rest.FINAL:
        cost = "" if job.forecast.usd is None else f", {job.forecast.usd:.2f} USD"
        text = f"{duration(job.forecast.wall_s)}, {job.forecast.held_s:.0f} function-seconds{cost}"
        found.append(("in all", f"about {text}"))
    entered = sorted(job.states.items(), key=lambda entry: entry[1].at)
    found += [("", f"{clock(entry.at)}  {state}") for state, entry in entered]
    found += [("label", f"{key}={value}") for key, value in job.metadata.items()]
    if job.error is not None:
        found.append(("error", job.error.detail))
        if job.error.hint:
            found.append(("hint", job.error.hint))
    return found


def _steps(progress: rest.Progress) -> str:
    return f"{progress.steps_done}/{progress.total_steps or '?'}"


def clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def duration(seconds: float) -> str:
    """In the two units that say most of it: ``42 s``, ``3 min 20 s``, ``2 d 4 h``."""
    left = max(0, round(seconds))
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if parts or count or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
