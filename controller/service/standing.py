"""How an open or ended job stands: what its record does not say, for those who look at it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from controller.job_store import job_key
from controller.ledger import Usage
from controller.redis_calls import answer
from controller.service.outputs import spent
from controller.service.reporter import Reached
from controller.service.service import Service
from controller.service.shares import QUEUE, QueueState, read_queue
from rlhfless import rest
from rlhfless.messages import FunctionName


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """``usage``, ``wall_s``: over all runs. ``waiting``: why the fair queue lets it wait."""

    reached: Reached = msgspec.field(default_factory=lambda: Reached(phase=None))
    usage: dict[FunctionName, Usage] = {}
    wall_s: float = 0.0
    waiting: str | None = None
    instances: int = 0


_FIELDS = ("reached", "usage", "wall_s")


async def standings(service: Service, jobs: Sequence[str]) -> list[Standing]:
    """In the order of ``jobs``."""
    pipe = service.redis.pipeline(transaction=False)
    for job in jobs:
        pipe.hmget(job_key(job), _FIELDS)
    pipe.get(QUEUE)
    *found, stored = await answer(pipe.execute())
    queue = read_queue(stored)
    return [_standing(job, values, queue) for job, values in zip(jobs, found, strict=True)]


def _standing(job: str, values: Sequence[bytes | None], queue: QueueState) -> Standing:
    notes: dict[str, Any] = {
        name: json.loads(raw) for name, raw in zip(_FIELDS, values, strict=True) if raw is not None
    }
    more = {"waiting": queue.waiting.get(job), "instances": queue.held(job)}
    return msgspec.convert(notes | more, Standing)


def progress(standing: Standing, *, running: bool) -> rest.Progress:
    reached = standing.reached
    return rest.Progress(
        steps_done=reached.steps_done,
        total_steps=reached.total_steps,
        phase=reached.phase if running else None,
        actors=reached.actors if running else 0,
        instances=standing.instances if running else 0,
        reward=reached.reward,
        spent=spent(sum(standing.usage.values(), Usage())),
        wall_s=standing.wall_s,
    )


def forecast(standing: Standing, *, running: bool) -> rest.Forecast | None:
    """In proportion to the steps done; None before the first."""
    reached, total = standing.reached, sum(standing.usage.values(), Usage())
    if not reached.steps_done or reached.total_steps is None:
        return None
    share = reached.total_steps / reached.steps_done
    wall_s = standing.wall_s * share
    return rest.Forecast(
        finish_at=time.time() + wall_s - standing.wall_s if running else None,
        wall_s=wall_s,
        held_s=total.held_s * share,
        usd=None if total.usd is None else total.usd * share,
    )
