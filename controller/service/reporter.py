"""What a running job tells those who watch: events in order, and how far it is.

Steps are told by the transaction that commits them; here is the rest. ``observe`` only notes;
``run`` writes, so that nothing a job does waits for the job store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis

from controller.evaluation import Evaluation
from controller.fencing import Fence
from controller.job import Event
from controller.job_store import job_key
from controller.journal import Journal, StepRecord
from controller.redis_calls import answer
from controller.service.events import Events, JobEvent
from rlhfless.errors import CapacityError, TransientError

_log = logging.getLogger(__name__)

PHASES = {"evaluate": "evaluate", "rollout": "rollout", "train": "train", "export": "export"}


class Reached(msgspec.Struct, kw_only=True):
    """How far a job is; kept as its note ``reached``. ``phase`` began at ``since`` (Unix
    seconds); ``reward`` is the mean of the last step."""

    steps_done: int = 0
    total_steps: int | None = None
    phase: str | None = "start"
    actors: int = 0
    reward: float | None = None
    since: float = 0.0


_decode = msgspec.json.Decoder(Reached).decode


async def read_reached(redis: Redis, jobs: Sequence[str]) -> dict[str, Reached]:
    """How far jobs are, by id."""
    pipe = redis.pipeline(transaction=False)
    for job in jobs:
        pipe.hget(job_key(job), "reached")
    found = await answer(pipe.execute())
    return {
        job: Reached() if raw is None else _decode(raw)
        for job, raw in zip(jobs, found, strict=True)
    }


class Reporter:
    """One run of a job. Raises ``LostLeaseError`` from ``run`` when another replica drives it."""

    def __init__(self, job: str, events: Events, journal: Journal, fence: Fence) -> None:
        self._job = job
        self._events = events
        self._journal = journal
        self._fence = fence
        self._outbox: deque[tuple[JobEvent, str | None]] = deque()
        self._news = asyncio.Event()
        self.reached = Reached()
        self.made_steps = False
        """Whether this run has committed any."""

    def observe(self, event: Event) -> None:
        reached = self.reached
        if (text := _logged(event)) is not None:
            _log.info("%s", text)
        if event.kind == "plan":
            reached.total_steps = event.data["total_steps"]
        elif event.kind in ("step", "restored"):
            reached.steps_done += 1
            reached.reward = event.data["metrics"].get("reward/mean")
            self.made_steps |= event.kind == "step"
        elif event.kind == "evaluated":
            found: Evaluation = event.data["evaluation"]
            self._outbox.append((_evaluated(event.data["step"], found), event.message))
        elif event.kind == "checkpoint":
            step = event.data["step"]
            data = {"step": step, "reference": f"checkpoint:{self._job}/{step}"}
            made = JobEvent(type="checkpoint", message=event.message, data=data)
            self._outbox.append((made, event.message))
        elif event.kind == "notice":
            self.say(JobEvent(type="notice", message=event.message))
        if event.kind in PHASES:
            reached.phase = PHASES[event.kind]
            reached.since = time.time()
            reached.actors = event.data.get("actors", reached.actors)
        if event.kind != "plan":  # the steps done before are restored next, and told with it
            self._news.set()

    def say(self, event: JobEvent) -> None:
        self._outbox.append((event, None))
        self._news.set()

    async def run(self) -> None:
        """Writes what is new, until it is cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self.flush()
            except (TransientError, CapacityError) as error:
                _log.warning("job %s: its events wait: %s", self._job, error.detail)
                await asyncio.sleep(1.0)
                self._news.set()

    async def flush(self) -> None:
        """Write all there is to say."""
        while self._outbox:
            event, once = self._outbox[0]
            await self._events.append(self._job, event, once=once, fence=self._fence)
            self._outbox.popleft()
        await self._journal.note(reached=msgspec.to_builtins(self.reached))


def _logged(event: Event) -> str | None:
    """An event as a line of the job's log; None: it says nothing new."""
    match event.kind:
        case "restored":
            return None
        case "plan":
            return f"the job has {event.data['total_steps']} steps"
        case "step":
            return announce(event.data["record"]).message
        case "evaluated":
            return _evaluated(event.data["step"], event.data["evaluation"]).message
        case "checkpoint" | "notice":
            return event.message
    return f"{event.kind}: {event.message}"


def announce(record: StepRecord) -> JobEvent:
    """The event of a committed step."""
    step, metrics = record.step + 1, record.metrics
    said: dict[str, Any] = {"step": step, "metrics": metrics}
    message = (
        f"step {step}: reward {metrics.get('reward/mean', float('nan')):.3f}, "
        f"{metrics.get('response_length/mean', float('nan')):.1f} tokens, "
        f"{metrics.get('time/step_s', float('nan')):.2f} s"
    )
    return JobEvent(type="step", message=message, data=said)


def _evaluated(steps: int, found: Evaluation) -> JobEvent:
    return JobEvent(
        type="evaluated",
        message=f"{100 * found.accuracy:.1f} % right on the held-out set after {steps} steps",
        data={
            "step": steps,
            "accuracy": found.accuracy,
            "reward_mean": found.reward_mean,
            "length_mean": found.length_mean,
        },
    )
