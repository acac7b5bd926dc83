"""Removing Knative Services and Jobs: one's own, and what controllers that are gone have left."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection

from controller.platforms.knative_manifest import HOLDER, JOB, SHARED, release_labels
from controller.platforms.knative_settings import KnativeSettings
from controller.platforms.knative_sharing import leave, marks_of
from controller.platforms.kube import JOBS, SERVICES, Kind, Kube, Object

_log = logging.getLogger(__name__)


async def delete_held(
    kube: Kube, namespace: str, name: str, holder: str | None, kind: Kind = SERVICES
) -> bool:
    """Delete a Service, or a Job, unless somebody else has taken it over; whether it is gone."""
    while (found := await kube.get(kind, name, namespace)) is not None:
        if found["metadata"].get("annotations", {}).get(HOLDER) != holder:
            return False
        if await kube.delete(kind, found):
            return True
    return True


async def collect(
    kube: Kube, settings: KnativeSettings, live: Callable[[], Awaitable[Collection[str]]]
) -> list[str]:
    """Delete the Services and Jobs of this release whose jobs nobody runs any more; their names.
    From those that several jobs use, take off the marks of such jobs.

    ``live`` tells the jobs that run, or are about to. It is asked after the Services have been
    listed: a job that begins in between is among them. A Service that changes hands meanwhile is
    left for the next time.
    """
    labels, namespace = release_labels(settings), settings.namespace
    services, _ = await kube.list(SERVICES, namespace, labels)
    jobs: list[Object] = []
    if settings.training.gang == "kueue":
        jobs, _ = await kube.list(JOBS, namespace, labels)
    if not services and not jobs:
        return []
    running = await live()
    removed = []
    for kind, found in (*((SERVICES, item) for item in services), *((JOBS, item) for item in jobs)):
        name, told = found["metadata"]["name"], found["metadata"].get("annotations", {})
        if SHARED in found["metadata"].get("labels", {}):
            gone = await _collect_shared(kube, settings, found, running)
        elif told.get(JOB) in running:
            gone = False
        else:
            gone = await delete_held(kube, namespace, name, told.get(HOLDER), kind)
        if gone:
            _log.info("removed %s, which no job that runs uses", name)
            removed.append(name)
    return removed


async def _collect_shared(
    kube: Kube, settings: KnativeSettings, service: Object, running: Collection[str]
) -> bool:
    marks = marks_of(service)
    if not marks:  # somebody took them off by hand
        return await kube.delete(SERVICES, service)
    gone = [
        await leave(kube, settings.namespace, service["metadata"]["name"], mark)
        for mark in marks
        if mark.job not in running
    ]
    return any(gone)
