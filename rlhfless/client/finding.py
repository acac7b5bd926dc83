"""Which job a person means."""

from __future__ import annotations

import re

from rlhfless import rest
from rlhfless.client.flows import Flow, visit
from rlhfless.client.requests import get, pages, path
from rlhfless.errors import NotFoundError, UserError

_ID = re.compile(r"job-[0-9a-f]{28}")
SHOWN = 3


def found(name: str) -> Flow[rest.Job]:
    """The job of this id, else the newest of this name, else the one whose id begins like this,
    with or without its ``job-``. Raises ``NotFoundError``, or ``UserError`` where several do."""
    if _ID.fullmatch(name):
        return (yield from get(rest.Job, path("jobs", name)))
    named: list[rest.Job] = []
    alike: list[rest.Job] = []

    def enough(job: rest.Job) -> bool:
        if job.name == name:
            named.append(job)
        elif job.id.startswith((name, f"job-{name}")):
            alike.append(job)
        return bool(named)

    yield from visit(pages(rest.Job, path("jobs")), enough)  # newest first
    if named:
        return named[0]
    if not alike:
        raise NotFoundError(
            f"there is no job {name!r}", hint="rlhfless list shows the jobs that you may see"
        )
    if len(alike) > 1:
        shown = ", ".join(job.id for job in alike[:SHOWN])
        more = "" if len(alike) <= SHOWN else f" and {len(alike) - SHOWN} more"
        raise UserError(
            f"{name!r} begins the ids of several jobs: {shown}{more}", hint="write more of it"
        )
    return alike[0]
