"""``rlhfless run``: a job on this machine, from the first process to the summary."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console

from rlhfless.cli.display import PHASES, Display
from rlhfless.cli.errors import INTERRUPTED
from rlhfless.cli.loop import run_interruptible
from rlhfless.cli.metrics_server import MetricsServer
from rlhfless.cli.summary import print_summary
from rlhfless.errors import RlhflessError, UserError, first_error
from rlhfless.spec import JobSpec
from rlhfless.spec_secrets import redacted, require_secrets, secret_texts

if TYPE_CHECKING:
    from controller.job import Event
    from controller.places import Place
    from controller.run_folder import RunFolder

PAUSED = 6
RUNS = "runs"


def run_job(
    spec: JobSpec,
    *,
    job_file: str,
    overrides: Sequence[str],
    out: str | None,
    resume: bool,
    metrics_port: int | None,
    platform: str = "local",
    ray_address: str = "",
    ray_serve_url: str = "",
) -> int:
    """Run ``spec``, which ``job_file`` and ``overrides`` gave, and return the exit code."""
    place = _place(platform, ray_address, ray_serve_url)
    from controller.integrations.kinds import require_installed
    from controller.run_folder import RunFolder, create_free, latest_folder

    require_secrets(spec)
    require_installed(spec)
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
        again = redacted(
            _resume_command(job_file, overrides, folder.path, place), secret_texts(spec)
        )
        return _run_in(folder, spec, again, metrics, place)
    finally:
        folder.close()


def _place(platform: str, ray_address: str, ray_serve_url: str) -> Place:
    """What is missing for it is told before a run's folder is made."""
    from controller.places import Place
    from controller.platforms.ray_local import require_ray
    from controller.platforms.ray_settings import RayPlace, serve_url

    if platform == "ray":
        if ray_serve_url and not ray_address:
            raise UserError(
                "--ray-serve-url needs --ray-address",
                param="--ray-address",
                hint="a run has Ray's dashboard start an agent of its own",
            )
        if ray_address:
            serve_url(RayPlace(address=ray_address, serve_url=ray_serve_url))
        else:
            require_ray()
        return Place(platform="ray", ray_address=ray_address, ray_serve_url=ray_serve_url)
    if platform != "local":
        raise UserError(
            f"there is no platform {platform!r} to run a job from here",
            param="--platform",
            hint="local or ray; a cluster of pods is reached by the service (docs/deploy.md)",
        )
    if ray_address or ray_serve_url:
        raise UserError("--ray-address and --ray-serve-url go with --platform ray")
    return Place()


def _resume_command(job_file: str, overrides: Sequence[str], folder: str, place: Place) -> str:
    """What a person types to go on with a run: the same job, overrides and all."""
    words = ["rlhfless", "run", job_file, "--out", os.path.relpath(folder), "--resume"]
    if place.platform != "local":
        words += ["--platform", place.platform]
    for option, value in (
        ("--ray-address", place.ray_address),
        ("--ray-serve-url", place.ray_serve_url),
    ):
        words += [option, value] if value else []
    return shlex.join(words + [word for override in overrides for word in ("--set", override)])


def _run_in(
    folder: RunFolder, spec: JobSpec, again: str, metrics: MetricsServer | None, place: Place
) -> int:
    from controller.known import Known
    from controller.local_run import run_local
    from controller.summary import write_failure

    console = Console()

    def say(text: str) -> None:  # as it is: a person may copy it
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(f"run folder: {os.path.relpath(folder.path)}")
    display = Display(console, spec.training.steps)
    began = False  # whether anything was generated that a resumed run would go on from
    known = Known()

    def observe(event: Event) -> None:
        nonlocal began
        began = began or event.kind in ("evaluated", "rollout")
        _show(event, display)
        if metrics is not None:
            metrics.observe(event)

    try:
        with display:
            outcome, summary = run_interruptible(run_local(folder, spec, observe, known, place))
    except BaseException as raised:  # how a run ended must be on record, whatever ended it
        error = first_error(raised)
        if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
            with suppress(RlhflessError):
                write_failure(folder, "interrupted", {}, known)
            say(f"interrupted; continue with: {again}")
            return INTERRUPTED
        problem = error.to_problem() if isinstance(error, RlhflessError) else {"detail": str(error)}
        with suppress(RlhflessError):  # a full disk may be what ended it
            write_failure(folder, "failed", problem, known)
        if isinstance(error, UserError) and folder.fresh and not began:
            folder.give_up()
        else:
            say(f"what was done is kept; continue with: {again}")
        raise
    print_summary(console, folder.path, summary)
    if outcome.status == "paused":
        say(f"paused: {outcome.reason}\ncontinue with: {again}")
        return PAUSED
    return 0


def _show(event: Event, display: Display) -> None:
    data = event.data
    match event.kind:
        case "plan":
            display.total_steps = data["total_steps"]
        case "step" | "restored":
            display.step(data["metrics"], restored=event.kind == "restored")
        case "evaluated":
            display.evaluated(data["step"], data["evaluation"].accuracy)
        case "notice":
            display.say(event.message)
        case "rollout":
            display.stepping()
    if event.kind in PHASES:
        display.phase = PHASES[event.kind]
