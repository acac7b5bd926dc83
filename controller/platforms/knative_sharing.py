"""Knative Services that several jobs use together, perhaps driven by different controllers.

Each job that uses one puts its mark on it, an annotation that it applies with a field manager of
its own together with all the rest: so to make a Service and to join it are one request, and whoever
gives its fields up takes nothing away that another job has applied. Who is the last to leave
deletes the Service, in the version in which it saw no other mark: a job that joins in between is
safe. A mark has its holder in it: a controller that has lost its job finds another's and leaves it.

A pod of such a Service is in the books of each of its jobs in equal parts, so that nothing is paid
for twice: no controller knows what pods do for other controllers' jobs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from controller.platforms.knative_manifest import LABEL
from controller.platforms.kube import SERVICES, Kube, Object

_PREFIX = f"user.{LABEL}/"


@dataclass(frozen=True)
class Mark:
    """That a job uses a Service; ``holder``: the platform object that drives the job."""

    job: str
    holder: str

    @property
    def annotation(self) -> dict[str, str]:
        return {_PREFIX + _digest(self.job): f"{self.holder} {self.job}"}

    @property
    def manager(self) -> str:
        """Who applies it."""
        return f"rlhfless-{_digest(self.job)}"


def _digest(job: str) -> str:
    """A job's id may have any characters, the names of annotations and managers may not."""
    return hashlib.sha256(job.encode()).hexdigest()[:16]


def marks_of(service: Object) -> list[Mark]:
    """Of the jobs that use it."""
    found = []
    for name, value in service["metadata"].get("annotations", {}).items():
        if name.startswith(_PREFIX):
            holder, _, job = value.partition(" ")
            found.append(Mark(job, holder))
    return found


async def leave(kube: Kube, namespace: str, name: str, mark: Mark) -> bool:
    """Take this very mark off a Service, or the Service away if it bears no other; whether the
    Service is gone."""
    while (service := await kube.get(SERVICES, name, namespace)) is not None:
        marks = marks_of(service)
        if mark not in marks:
            return False
        if len(marks) == 1:
            if await kube.delete(SERVICES, service):
                return True
        elif await kube.relinquish(SERVICES, service, mark.manager):
            return False
    return True
