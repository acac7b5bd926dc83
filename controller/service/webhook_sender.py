"""Webhooks of the service's jobs: every message is taken at least once, whatever dies meanwhile.

One replica at a time sends them all (by a lease of its own); another goes on when it is lost. What
a webhook was told is a cursor into the job's events, moved on when a message was taken or given up,
so that messages come in order, and one that came just before a crash comes again, with its id.

    rlhfless:webhooks               set      "tenant job" of jobs with something left to tell
    rlhfless:{job}:webhook:{index}  string   id of the last event that is dealt with, or "done"
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from redis.asyncio import Redis

from controller.fencing import Fence, LostLeaseError, check_fence, fence_key
from controller.integrations.delivery import deliver
from controller.integrations.messages import message, post, shown, wants
from controller.redis_calls import answer
from controller.service.events import START, Events, JobEvent
from controller.service.fanout import Fanout
from controller.service.lease import Leases
from controller.service.records import WEBHOOK_JOBS
from controller.service.registry import Registry
from controller.service.settings import Settings
from controller.service.states import FINAL
from rlhfless.errors import (
    CapacityError,
    NotFoundError,
    RlhflessError,
    TransientError,
    UserError,
    first_error,
)
from rlhfless.seeds import derive
from rlhfless.spec import JobSpec, WebhookSpec
from rlhfless.spec_secrets import merge

LEASE = "webhooks"
"""The lease is kept as a job's would be; no job has such an id."""
LOOK_S = 1.0
"""Between two looks for jobs that are new."""
DONE = b"done"
DEFECT_PAUSE_S = 60.0
AT_ONCE = 32
"""Messages on their way at a time."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Told:
    """One webhook of one job."""

    job: str
    spec: JobSpec
    index: int

    @property
    def webhook(self) -> WebhookSpec:
        return self.spec.webhooks[self.index]

    @property
    def cursor_key(self) -> str:
        return f"rlhfless:{{{self.job}}}:webhook:{self.index}"


class WebhookSender:
    """A replica's readiness to send. ``now``: Unix seconds."""

    def __init__(
        self,
        redis: Redis,
        registry: Registry,
        events: Events,
        leases: Leases,
        settings: Settings,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._redis = redis
        self._registry = registry
        self._events = events
        self._fanout = Fanout(events)
        self._leases = leases
        self._settings = settings
        self._now = now
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                lease = await self._leases.acquire(LEASE)
                if lease is not None:
                    async with self._leases.keeping(lease):
                        await self._send_all(lease.fence)
            except* LostLeaseError:
                _log.info("another replica sends the webhooks now")
            except* (TransientError, CapacityError) as group:
                _log.warning("webhooks wait: %s", first_error(group))
            await asyncio.sleep(LOOK_S)

    async def _send_all(self, fence: Fence) -> None:
        tasks: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                members = await answer(self._redis.smembers(WEBHOOK_JOBS))
                tasks = {member: task for member, task in tasks.items() if not task.done()}
                for member in sorted(raw.decode() for raw in members):
                    if member not in tasks:
                        tasks[member] = group.create_task(self._job(member, fence))
                await asyncio.sleep(LOOK_S)

    async def _job(self, member: str, fence: Fence) -> None:
        """Until the job's end is told to all its webhooks."""
        tenant, _, job = member.partition(" ")
        try:
            record = await self._registry.get(tenant, job)
            spec = merge(record.spec, await self._registry.secrets(job))
        except (NotFoundError, UserError, ValidationError) as error:
            _log.warning("the webhooks of job %s are given up: %s", job, error)
            await self._fenced(fence, lambda pipe: pipe.srem(WEBHOOK_JOBS, member))
            return
        all_told = [_Told(job, spec, index) for index in range(len(spec.webhooks))]
        try:
            async with asyncio.TaskGroup() as group:
                for told in all_told:
                    group.create_task(self._webhook(told, fence))
        except Exception as error:  # the boundary of the task: other jobs have webhooks, too
            if isinstance(first_error(error), RlhflessError):
                raise
            _log.exception("the webhooks of job %s met a defect", job)
            await asyncio.sleep(DEFECT_PAUSE_S)
            return

        def forget(pipe: Any) -> None:
            pipe.delete(*(told.cursor_key for told in all_told))
            pipe.srem(WEBHOOK_JOBS, member)

        await self._fenced(fence, forget)

    async def _webhook(self, told: _Told, fence: Fence) -> None:
        raw = await answer(self._redis.get(told.cursor_key))
        if raw == DONE:
            return
        cursor = START if raw is None else raw.decode()
        rng = random.Random(derive(told.job, "webhook", told.index))
        async with aclosing(self._fanout.follow(told.job, cursor)) as stream:
            async for events in stream:
                for event in events:
                    last = event.type == "state" and event.data.get("state") in FINAL
                    wanted = wants(told.webhook, event.type, event.data)
                    if wanted:
                        await self._deliver(told, event, rng)
                    if wanted or last:
                        reached = DONE if last else event.id.encode()
                        await self._fenced(fence, _setting(told.cursor_key, reached))
                    if last:
                        return

    async def _deliver(self, told: _Told, event: JobEvent, rng: random.Random) -> None:
        content = message(
            event.id, event.created_at, told.job, told.spec.name, event.type, event.data
        )

        async def send(content: Mapping[str, Any], now_s: float) -> None:
            async with self._slots:
                await post(
                    told.webhook,
                    content,
                    now_s,
                    trusted=False,
                    allowed_urls=self._settings.allowed_urls,
                )

        async def failed(why: str) -> None:
            text = f"webhook {shown(told.webhook)}: {event.message[:80]!r}: {why}"
            said = JobEvent(type="notice", level="warning", message=text)
            once = f"webhook-{told.index}-{event.id}-{why}"
            await self._events.append(told.job, said, once=once)

        await deliver(content, send, failed=failed, rng=rng, now=self._now)

    async def _fenced(self, fence: Fence, write: Callable[[Any], object]) -> None:
        async def plan(pipe: Any) -> None:
            await check_fence(pipe, LEASE, fence)
            pipe.multi()
            write(pipe)

        await answer(self._redis.transaction(plan, fence_key(LEASE)))


def _setting(key: str, value: bytes) -> Callable[[Any], object]:
    return lambda pipe: pipe.set(key, value)
