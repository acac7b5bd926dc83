"""``rlhfless submit``."""

from __future__ import annotations

import typer

from rlhfless.cli.service import connect, print_json, working
from rlhfless.spec import JobSpec


def submit_job(spec: JobSpec, *, as_json: bool) -> str:
    """Hand it in and return its id, which alone is printed to stdout."""
    with connect() as client:
        with working("uploading what the job names"):
            job = client.jobs.submit(spec)
        if as_json:
            print_json(job)
            return job.id
        typer.echo(job.id)
        typer.echo(f"{job.name} is {job.state}; watch it: rlhfless watch {job.id}", err=True)
        return job.id
