"""``rlhfless watch``: the live table of a job of the service."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import typer
from rich.console import Console

from rlhfless import rest
from rlhfless.cli.display import PHASES, Display
from rlhfless.cli.errors import INTERRUPTED, print_error
from rlhfless.cli.loop import run_interruptible
from rlhfless.cli.outputs import show_cost
from rlhfless.cli.service import print_json
from rlhfless.cli.summary import print_learned
from rlhfless.client import AsyncClient
from rlhfless.errors import CapacityError, InternalError, TransientError, from_problem

PAUSED = 6
CANCELLED = 7
RETRIES = 12
"""A minute: a restart of the service is watched through."""
LOOK_EVERY_S = 1.0


def watch_job(name: str, as_json: bool) -> int:
    """Show what happens until the job ends or pauses, and return the exit code."""
    watched = _Watched(name)
    try:
        job, usage = run_interruptible(watched.tell() if as_json else watched.draw())
    except (KeyboardInterrupt, asyncio.CancelledError):
        again = f"watch it again: rlhfless watch {watched.job_id or name}"
        typer.echo(f"the job goes on; {again}", err=True)
        return INTERRUPTED
    if not as_json:
        _print_end(job, usage, watched.accuracies)
    return _exit_code(job)


class _Watched:
    """``accuracies``: on the held-out set, by steps done."""

    def __init__(self, name: str) -> None:
        self.job_id: str | None = None
        self.accuracies: dict[int, float] = {}
        self._name = name

    async def tell(self) -> tuple[rest.Job, rest.Usage | None]:
        """Each event as a line of JSON."""
        async with AsyncClient(retries=RETRIES) as client:
            job = await client.jobs.find(self._name)
            self.job_id = job.id
            async for event in client.jobs.events(job):
                print_json(event)
                if _may_be_paused(event) and await _is_paused(client, job.id):
                    break
            return await client.jobs.get(job), None

    async def draw(self) -> tuple[rest.Job, rest.Usage | None]:
        async with AsyncClient(retries=RETRIES) as client:
            job = await client.jobs.find(self._name)
            self.job_id = job.id
            steps = job.progress.total_steps or job.spec.get("training", {}).get("steps")
            display = Display(Console(), steps)
            display.say(f"{job.id}  {job.name}")
            with display:
                _look(job, display)
                looking = asyncio.create_task(_looking(client, job.id, display))
                try:
                    await self._follow(client, job.id, display)
                finally:
                    looking.cancel()
                    with suppress(asyncio.CancelledError):
                        await looking
            return await client.jobs.get(job), await client.jobs.usage(job)

    async def _follow(self, client: AsyncClient, job: str, display: Display) -> None:
        async for event in client.jobs.events(job):
            self._show(event, display)
            if _may_be_paused(event) and await _is_paused(client, job):
                return

    def _show(self, event: rest.Event, display: Display) -> None:
        match event.type:
            case "step":
                display.step(event.data["metrics"])
            case "evaluated":
                step, accuracy = event.data["step"], event.data["accuracy"]
                self.accuracies[step] = accuracy
                display.evaluated(step, accuracy)
            case "state":
                display.entered(event.message)
            case _:
                display.say(event.message)


def _may_be_paused(event: rest.Event) -> bool:
    return event.type == "state" and event.data.get("state") == "paused"


async def _is_paused(client: AsyncClient, job: str) -> bool:
    """Now, and not in a past that the events tell of."""
    return (await client.jobs.get(job)).state == "paused"


async def _looking(client: AsyncClient, job: str, display: Display) -> None:
    """Keep up with what no event tells: the phase, the forecast. While the service cannot be asked,
    the display stays as it is; it is for the events to give up."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        with suppress(TransientError, CapacityError):
            _look(await client.jobs.get(job), display)


def _look(job: rest.Job, display: Display) -> None:
    progress = job.progress
    if progress.total_steps is not None:
        display.total_steps = progress.total_steps
    display.ran_for(progress.wall_s)
    if job.state == "running" and progress.phase is not None:
        display.phase = PHASES.get(progress.phase, progress.phase)
    else:
        display.phase = job.state if job.reason is None else f"{job.state}: {job.reason}"
    finish_at = None if job.forecast is None else job.forecast.finish_at
    display.left_s = None if finish_at is None else max(0.0, finish_at - time.time())


def _print_end(job: rest.Job, usage: rest.Usage | None, accuracies: dict[int, float]) -> None:
    console = Console(highlight=False)
    progress = job.progress
    if job.state == "succeeded":
        print_learned(
            console,
            before=accuracies.get(0),
            after=accuracies.get(progress.steps_done),
            reward=progress.reward,
            took=f"{progress.steps_done} steps, {progress.wall_s:.0f} s",
        )
    else:
        reason = f": {job.reason}" if job.reason else ""
        typer.echo(f"{job.id} is {job.state}{reason}")
    if usage is not None:
        show_cost(console, usage)
    if job.state == "succeeded":
        typer.echo(f"\nDownload the weights: rlhfless download {job.id} --out {job.name}")
    elif job.state == "paused":
        typer.echo(f"\nLet it go on: rlhfless resume {job.id}")
    elif job.error is not None:
        print_error(from_problem(job.error.model_dump()))


def _exit_code(job: rest.Job) -> int:
    match job.state:
        case "succeeded":
            return 0
        case "paused":
            return PAUSED
        case "cancelled":
            return CANCELLED
    error = None if job.error is None else from_problem(job.error.model_dump())
    return InternalError.exit_code if error is None else error.exit_code
