"""The commands that ask a service (``rlhfless serve``): submit jobs, look at them, steer them.

Which service, and who asks, say ``RLHFLESS_URL`` and ``RLHFLESS_API_KEY``; without them, the one on
this machine, with the key that its first start left here. With ``--json``, what is one thing is
printed as one document, what is a list as one document a line.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from rlhfless.cli.options import AsJson, JobFile, Overrides, SubmittedJob, Verbose

StepOption = Annotated[
    int | None, typer.Option(min=1, help="The step, counted from 1. Default: the newest.")
]


class Sort(str, Enum):  # noqa: UP042 - typer shows the values of a str
    """How samples are sorted."""

    best = "-reward"
    worst = "reward"
    by_id = "id"


def register(app: typer.Typer) -> None:
    for command in (
        submit,
        list_,
        show,
        watch,
        logs,
        cancel,
        pause,
        resume,
        delete,
        usage,
        metrics,
        rollouts,
        download,
    ):
        app.command(command.__name__.rstrip("_"), rich_help_panel="Service")(command)


def submit(
    job: JobFile,
    overrides: Overrides = None,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it until it ends.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Hand a job to the service, with the files it names; prints its id."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.submit import submit_job
        from rlhfless.spec_file import load_spec

        made = submit_job(load_spec(job, overrides or ()), as_json=as_json and not watch)
        if watch:
            from rlhfless.cli.watch import watch_job

            raise typer.Exit(watch_job(made, as_json))


def list_(
    state: Annotated[
        str | None, typer.Option(metavar="STATE,...", help="Only jobs in these states.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 20,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """List jobs, newest first."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.jobs import list_jobs

        list_jobs(state, limit, as_json)


def show(job: SubmittedJob, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Show how a job stands."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.jobs import show_job

        show_job(job, as_json)


def watch(job: SubmittedJob, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Watch a job until it ends or pauses. Ctrl-C ends the watching, not the job.

    Exits with 0 if it succeeded, 6 if it is paused, 7 if it was cancelled, and if it failed with
    the code of its error.
    """
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.watch import watch_job

        raise typer.Exit(watch_job(job, as_json))


def logs(
    job: SubmittedJob,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")
    ] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Print what the controller and the functions of a job said."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.outputs import print_logs

        print_logs(job, follow, as_json)


def cancel(job: SubmittedJob, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """End a job at once. What its committed steps have left stays."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.jobs import steer

        steer(job, "cancel", as_json)


def pause(job: SubmittedJob, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Let a job stop after the step under way; it holds nothing then."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.jobs import steer

        steer(job, "pause", as_json)


def resume(
    job: SubmittedJob,
    max_usd: Annotated[
        float | None, typer.Option(metavar="USD", help="A new budget in dollars.")
    ] = None,
    max_function_seconds: Annotated[
        float | None, typer.Option(metavar="S", help="A new budget in function-seconds.")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Let a paused job go on."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.jobs import steer

        given = {"max_usd": max_usd, "max_function_seconds": max_function_seconds}
        budget = {name: value for name, value in given.items() if value is not None}
        steer(job, "resume", as_json, budget or None)


def delete(
    job: SubmittedJob,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Remove a job that has ended, with all it left: weights, samples, metrics, logs."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.jobs import delete_job

        delete_job(job, yes, as_json)


def usage(
    job: SubmittedJob,
    steps: Annotated[bool, typer.Option("--steps", help="By step as well.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show what a job took: seconds held, busy, idle and cold, and money, by function."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.outputs import show_usage

        show_usage(job, steps, as_json)


def metrics(
    job: SubmittedJob,
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="Only this one, e.g. reward/mean; may be repeated."),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show the metrics of a job's steps."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.outputs import show_metrics

        show_metrics(job, name or [], as_json)


def rollouts(
    job: SubmittedJob,
    step: StepOption = None,
    sort: Annotated[
        Sort, typer.Option(help="-reward: the best first; reward: the worst first.")
    ] = Sort.best,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 10,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="With the log-prob of each token.")
    ] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Show samples of a step: prompt, response, rewards."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.outputs import show_rollouts

        show_rollouts(job, step, sort.value, limit, tokens, as_json)


def download(
    job: SubmittedJob,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="The folder to make.")],
    step: StepOption = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Download a job's weights, ready for transformers. What broke off is gone on with."""
    from rlhfless.cli.errors import reporting

    with reporting(verbose):
        from rlhfless.cli.outputs import download_weights

        download_weights(job, out, step, as_json)
