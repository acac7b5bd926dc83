"""Webhooks of a job on this machine, sent as it goes. Whoever runs it says how it ends; a message
that nobody takes is tried until then, and for a little while longer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from controller.integrations.delivery import deliver
from controller.integrations.follower import Warn
from controller.integrations.messages import message, post, shown, wants
from controller.integrations.tracker import Status
from controller.job import Event
from rlhfless.seeds import derive
from rlhfless.spec import JobSpec, WebhookSpec

CLOSE_S = 15.0
_STATE: dict[Status, str] = {"interrupted": "paused"}


class Webhooks:
    """Events are numbered within a run of the job, which ``started_s`` (Unix seconds) names."""

    def __init__(self, spec: JobSpec, job: str, warn: Warn, started_s: float) -> None:
        self._spec = spec
        self._job = job
        self._warn = warn
        self._run = f"{job}-{int(started_s * 1000)}"
        self._count = 0
        self._ended = False
        self._queues = [
            (webhook, asyncio.Queue[dict[str, Any] | None]()) for webhook in spec.webhooks
        ]
        self._tasks = [
            asyncio.create_task(self._send(index, webhook, queue), name=f"webhook-{index}")
            for index, (webhook, queue) in enumerate(self._queues)
        ]

    def observe(self, event: Event) -> None:
        if event.kind == "step":
            metrics = event.data["metrics"]
            self._tell("step", {"step": int(metrics["step"]), "metrics": metrics})

    def state(self, state: str, reason: str | None = None) -> None:
        self._tell("state", {"state": state, "reason": reason})

    def ended(self, status: Status, reason: str | None = None) -> None:
        """The state that a run leaves the job in; interrupted, it can go on. Said once."""
        if self._ended:
            return
        self._ended = True
        self.state(_STATE.get(status, status), reason or status)

    def _tell(self, kind: str, data: Mapping[str, Any]) -> None:
        self._count += 1
        id_ = f"{self._run}-{self._count}"
        content = message(id_, time.time(), self._job, self._spec.name, kind, data)
        for webhook, queue in self._queues:
            if wants(webhook, kind, data):
                queue.put_nowait(content)

    async def close(self) -> None:
        """Give what waits ``CLOSE_S`` to be taken."""
        for _, queue in self._queues:
            queue.put_nowait(None)
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=CLOSE_S)
        finally:
            for task, (webhook, _) in zip(self._tasks, self._queues, strict=True):
                if not task.done():
                    task.cancel()
                    self._warn(f"webhook {shown(webhook)}: messages were not delivered")
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(
        self, index: int, webhook: WebhookSpec, queue: asyncio.Queue[dict[str, Any] | None]
    ) -> None:
        rng = random.Random(derive(self._spec.seed, "webhook", index))

        async def send(content: Mapping[str, Any], now_s: float) -> None:
            await post(webhook, content, now_s, trusted=True)

        async def failed(why: str) -> None:
            self._warn(f"webhook {shown(webhook)}: {why}")

        while (content := await queue.get()) is not None:
            await deliver(content, send, failed=failed, rng=rng)


@asynccontextmanager
async def telling(spec: JobSpec, job: str, warn: Warn) -> AsyncGenerator[Webhooks, None]:
    """The webhooks of a run. The body says how it ends (``ended``) unless it raises."""
    webhooks = Webhooks(spec, job, warn, time.time())
    webhooks.state("running")
    try:
        yield webhooks
    except (asyncio.CancelledError, KeyboardInterrupt):
        webhooks.ended("interrupted")
        raise
    except BaseException as error:
        webhooks.ended("failed", str(error) or type(error).__name__)
        raise
    finally:
        await webhooks.close()
