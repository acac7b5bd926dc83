"""All of a job's experiment trackers, for whoever drives it.

``tracking`` starts them and brings them to an end; its ``Trackers`` is told of the job's events.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from controller.evaluation import Evaluation
from controller.fencing import LostLeaseError
from controller.integrations.follower import CLOSE_S, Follower, Warn
from controller.integrations.process import TrackerProcess
from controller.integrations.tracker import Entry, RunConfig, Status
from controller.integrations.worker import Begin
from controller.job import Event
from controller.service.urls import is_exempt
from rlhfless.spec import IntegrationSpec, JobSpec
from rlhfless.spec_secrets import masked, redacted, secret_texts

SOON_S = 2.0
"""A wait that is longer is told."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where trackers run. ``folder``: of the job's own, one below it for each tracker; ``logs``:
    what their libraries print. ``trusted``: the job's owner is the one whose machine this is, so
    trackers may use its environment and reach its network; else they reach the public internet
    and what lies below ``allowed_urls``."""

    folder: str
    logs: str | None = None
    trusted: bool
    allowed_urls: Sequence[str] = ()


class Trackers:
    """``now``: Unix seconds."""

    def __init__(
        self, followers: Sequence[Follower], warn: Warn, now: Callable[[], float] = time.time
    ) -> None:
        self._followers = followers
        self._warn = warn
        self._now = now
        self._status: Status | None = None
        self._tasks = {
            asyncio.create_task(follower.run(), name=f"tracker-{follower.name}"): follower
            for follower in followers
        }

    def observe(self, event: Event) -> None:
        """An event of ``controller.job``; those that trackers have no use for are passed over."""
        if event.kind in ("step", "restored"):
            metrics = event.data["metrics"]
            self._add(int(metrics["step"]), metrics, evaluation=False)
        elif event.kind == "evaluated":
            found: Evaluation = event.data["evaluation"]
            metrics = {
                "eval/accuracy": found.accuracy,
                "eval/reward_mean": found.reward_mean,
                "eval/length_mean": found.length_mean,
            }
            self._add(event.data["step"], metrics, evaluation=True)

    def _add(self, step: int, metrics: dict[str, float], *, evaluation: bool) -> None:
        entry = Entry(step=step, evaluation=evaluation, at=self._now(), metrics=metrics)
        for follower in self._followers:
            follower.add(entry)

    def ended(self, status: Status) -> None:
        """How the job stands at the end of this run of it; else it is taken from what is raised."""
        self._status = status

    async def close(self, error: BaseException | None) -> None:
        """Give the trackers ``CLOSE_S`` to take what waits."""
        lost = isinstance(error, LostLeaseError)  # whoever has the job now tells of it
        status = self._status or _status_of(error)
        if self._tasks and not lost:
            for follower in self._followers:
                follower.finish(status)
            try:
                await self._wait()
            except asyncio.CancelledError:
                await self._end()
                raise
        await self._end()

    async def _wait(self) -> None:
        _, waiting = await asyncio.wait(self._tasks, timeout=SOON_S)
        if waiting:
            names = ", ".join(sorted(self._tasks[task].name for task in waiting))
            self._warn(f"waiting for {names}, {CLOSE_S:g} s at most")
            await asyncio.wait(waiting, timeout=CLOSE_S - SOON_S)

    async def _end(self) -> None:
        for task, follower in self._tasks.items():
            if not task.done():
                task.cancel()
                self._warn(
                    f"{follower.name}: {follower.behind} steps and evaluations did not get there"
                )
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task, follower in self._tasks.items():
            if not task.cancelled() and (error := task.exception()) is not None:
                self._warn(f"{follower.name}: a defect: {type(error).__name__}: {error}")


@asynccontextmanager
async def tracking(
    spec: JobSpec, job: str, place: Place, warn: Warn
) -> AsyncGenerator[Trackers, None]:
    """The job's trackers while the body runs it. ``warn`` takes a sentence without secrets.
    ``controller.integrations.kinds.require_installed`` was asked before."""
    secrets = secret_texts(spec)
    config = masked(spec)

    def say(text: str) -> None:
        warn(redacted(text, secrets))

    followers = []
    for index, integration in enumerate(spec.integrations):
        before = sum(other.type == integration.type for other in spec.integrations[:index])
        name = f"{integration.type}-{before + 1}" if before else integration.type
        begin = Begin(
            kind=integration.type,
            config=RunConfig(
                job=job,
                name=integration.run or spec.name,
                project=integration.project,
                folder=os.path.join(place.folder, name),
                url=integration.url,
                api_key=_key(integration),
                tags=integration.tags,
                config=config,
            ),
            public_hosts_only=not place.trusted,
            allowed_hosts=_allowed_hosts(integration, place.allowed_urls),
        )
        followers.append(Follower(name, begin, _process_maker(name, place), say))
    trackers = Trackers(followers, say)
    try:
        yield trackers
    except BaseException as error:
        await trackers.close(error)
        raise
    await trackers.close(None)


def _process_maker(name: str, place: Place) -> Callable[[], TrackerProcess]:
    folder = os.path.join(place.folder, name)
    log = None if place.logs is None else os.path.join(place.logs, f"{name}.log")
    return lambda: TrackerProcess(folder, log, own_environment=place.trusted)


def _key(integration: IntegrationSpec) -> str | None:
    return None if integration.api_key is None else integration.api_key.get_secret_value()


def _allowed_hosts(integration: IntegrationSpec, allowed_urls: Sequence[str]) -> list[str]:
    if integration.url is None:
        return []
    parts = urlsplit(integration.url)
    return [parts.hostname] if parts.hostname and is_exempt(parts, allowed_urls) else []


def _status_of(error: BaseException | None) -> Status:
    if error is None:
        return "succeeded"
    interrupted = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
    return "interrupted" if interrupted else "failed"
