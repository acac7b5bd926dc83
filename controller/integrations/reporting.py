"""Trackers and webhooks of a job on this machine, as one."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from controller.integrations.trackers import Place, Trackers, tracking
from controller.integrations.webhooks import Webhooks, telling
from controller.job import Event, Observer
from controller.orchestrator import Outcome
from rlhfless.spec import JobSpec


@dataclass(frozen=True)
class Reporting:
    """Whom a run tells of its events."""

    trackers: Trackers
    webhooks: Webhooks

    def observing(self, observe: Observer) -> Observer:
        """``observe``, with all of them beside it."""

        def all_observe(event: Event) -> None:
            self.trackers.observe(event)
            self.webhooks.observe(event)
            observe(event)

        return all_observe

    def ended(self, outcome: Outcome) -> None:
        """The run came to an end of its own."""
        self.trackers.ended(outcome.status)
        self.webhooks.ended(outcome.status, outcome.reason)


@asynccontextmanager
async def reporting(
    spec: JobSpec, job: str, folder: str, observe: Observer
) -> AsyncGenerator[Reporting, None]:
    """Of a run in ``folder``; ``observe`` gets a notice of what does not go well."""

    def warn(text: str) -> None:
        observe(Event("notice", text))

    place = Place(folder=folder, logs=os.path.join(folder, "logs"), trusted=True)
    async with tracking(spec, job, place, warn) as trackers, telling(spec, job, warn) as webhooks:
        yield Reporting(trackers, webhooks)
