"""``rlhfless run``: a job on this machine, from the first process to the summary."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rlhfless.cli.display import Display, print_summary
from rlhfless.cli.errors import INTERRUPTED, first_error
from rlhfless.cli.metrics_server import MetricsServer
from rlhfless.errors import RlhflessError, UserError
from rlhfless.spec import JobSpec

if TYPE_CHECKING:
    from controller.job import Event
    from controller.orchestrator import Outcome
    from controller.run_folder import RunFolder

PAUSED = 6
RUNS = "runs"


def run_job(
    spec: JobSpec, *, job_file: str, out: str | None, resume: bool, metrics_port: int | None
) -> int:
    """Run ``spec`` and return the exit code."""
    from controller.run_folder import RunFolder, create_free, latest_folder

    metrics = None if metrics_port is None else MetricsServer(metrics_port)
    if resume:
        folder = RunFolder(out if out is not None else latest_folder(RUNS, spec.name))
        folder.resume(spec)
    elif out is not None:
        folder = RunFolder(out)
        folder.create(spec)
    else:
        folder = create_free(RUNS, spec.name, spec)
    try:
        return _run_in(folder, spec, job_file, metrics)
    finally:
        folder.close()


def _run_in(folder: RunFolder, spec: JobSpec, job_file: str, metrics: MetricsServer | None) -> int:
    from controller.summary import write_failure

    console = Console()
    shown = os.path.relpath(folder.path)
    console.print(f"run folder: {shown}", highlight=False)
    display = Display(console, spec)

    def observe(event: Event) -> None:
        display.observe(event)
        if metrics is not None:
            metrics.observe(event)

    again = f"rlhfless run {job_file} --out {shown} --resume"
    try:
        with display:
            outcome, summary = asyncio.run(_until_sigterm(folder, spec, observe))
    except BaseException as raised:  # how a run ended must be on record, whatever ended it
        error = first_error(raised)
        if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
            write_failure(folder, "interrupted", {}, display.steps_done)
            console.print(f"interrupted; continue with: {again}", highlight=False)
            return INTERRUPTED
        problem = error.to_problem() if isinstance(error, RlhflessError) else {"detail": str(error)}
        with suppress(RlhflessError):  # a full disk may be what ended it
            write_failure(folder, "failed", problem, display.steps_done)
        if isinstance(error, UserError) and not display.began:
            folder.give_up()
        raise
    print_summary(console, folder.path, summary)
    if outcome.status == "paused":
        console.print(f"paused: {outcome.reason}\ncontinue with: {again}", highlight=False)
        return PAUSED
    return 0


async def _until_sigterm(
    folder: RunFolder, spec: JobSpec, observe: Any
) -> tuple[Outcome, dict[str, Any]]:
    """SIGTERM ends a run like Ctrl-C does: functions are drained and stopped, the journal stays."""
    from controller.local_run import run_local

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run_local(folder, spec, observe)
