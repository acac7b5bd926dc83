"""Removing Knative Services: one's own, and what controllers that are gone have left."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection

from controller.platforms.knative_manifest import HOLDER, JOB, SHARED, release_labels
from controller.platforms.knative_settings import KnativeSettings
from controller.platforms.knative_sharing import leave, marks_of
from controller.platforms.kube import SERVICES, Kube, Object

_log = logging.getLogger(__name__)


async def delete_held(kube: Kube, namespace: str, name: str, holder: str | None) -> bool:
    """Delete a Service unless somebody else has taken it over; whether it is gone."""
    while (service := await kube.get(SERVICES, name, namespace)) is not None:
        if service["metadata"].get("annotations", {}).get(HOLDER) != holder:
            return False
        if await kube.delete(SERVICES, service):
            return True
    return True


async def collect(
    kube: Kube, settings: KnativeSettings, live: Callable[[], Awaitable[Collection[str]]]
) -> list[str]:
    """Delete the Services of this release whose jobs nobody runs any more; their names. From those
    that several jobs use, take off the marks of such jobs.

    ``live`` tells the jobs that run, or are about to. It is asked after the Services have been
    listed: a job that begins in between is among them. A Service that changes hands meanwhile is
    left for the next time.
    """
    services, _ = await kube.list(SERVICES, settings.namespace, release_labels(settings))
    if not services:
        return []
    running = await live()
    removed = []
    for service in services:
        name, told = service["metadata"]["name"], service["metadata"].get("annotations", {})
        if SHARED in service["metadata"].get("labels", {}):
            if await _collect_shared(kube, settings, service, running):
                _log.info("removed %s, which no job that runs uses", name)
                removed.append(name)
            continue
        if told.get(JOB) in running:
            continue
        if await delete_held(kube, settings.namespace, name, told.get(HOLDER)):
            _log.info("removed %s, which an earlier controller left", name)
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
