"""``rlhfless profile``: what a job's functions take on this machine, as constants."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rlhfless.cli.loop import run_interruptible
from rlhfless.errors import UserError
from rlhfless.measurements import Measurements, save_measurements
from rlhfless.spec import JobSpec

if TYPE_CHECKING:
    from controller.profile import Fit, Profile

SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"), (1e-12, "ps"))


def write_profile(spec: JobSpec, *, out: str, rounds: int, instances: int | None) -> None:
    """Measure, print what was found, and write it to ``out``."""
    from controller.profile import profile_job

    console = Console(highlight=False, soft_wrap=True)
    _check_writable(out)
    with _progress(console) as progress:
        task = progress.add_task("starting functions", total=None)

        def show(done: int, total: int, what: str) -> None:
            progress.update(task, completed=done, total=total, description=what)

        found = run_interruptible(
            profile_job(spec, rounds=rounds, instances=instances, progress=show)
        )
    save_measurements(out, found.measurements)
    _print(console, found)
    console.print(f"written to {out}; use it with: rlhfless simulate JOB --calibrate {out}")


def _check_writable(path: str) -> None:
    """Before minutes of measuring."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise UserError(f"cannot write {path}", hint="name a file in a folder of yours with --out")


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("calls"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _print(console: Console, found: Profile) -> None:
    measured = found.measurements
    together = f"rollout instances at work at once: {found.instances}"
    console.print(f"{measured.model}\n{measured.machine}; {together}; {found.seconds:.0f} s\n")
    console.print(_costs(found.fits))
    console.print()
    console.print(_starts(measured))


def _costs(fits: Sequence[Fit]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("work")
    table.add_column("takes")
    table.add_column("calls", justify="right")
    table.add_column("median error", justify="right")
    for fit in fits:
        parts = [
            f"{seconds(value)} per {unit}"
            for value, unit in zip(fit.coefficients, fit.units, strict=True)
            if value
        ]
        name = fit.kind.replace("_", " ").replace("kv", "KV")
        table.add_row(name, " + ".join(parts), str(fit.calls), f"{fit.error:.0%}")
    return table


def _starts(measured: Measurements) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("function")
    for name in ("cold start", "first load", "carrying a call"):
        table.add_column(name, justify="right")
    for function in measured.cold_start_s:
        values = (measured.cold_start_s, measured.load_s, measured.call_s)
        shown = [seconds(each[function]) if function in each else "-" for each in values]
        table.add_row(function, *shown)
    return table


def seconds(value: float) -> str:
    """With a unit that leaves one to three digits before the point."""
    for scale, unit in SCALES:
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return "0 s" if value == 0 else f"{value:.1e} s"
