"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

JobFile = Annotated[str, typer.Argument(help="The job file (YAML).", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a field; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show stack traces of errors.")]


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    """What a shell offers for a job: ids, and what they are."""
    from rlhfless.cli.completion import matching_jobs

    return matching_jobs(incomplete)


SubmittedJob = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job's id, the beginning of it, or its name (the newest of that name).",
        show_default=False,
        autocompletion=complete_job,
    ),
]
