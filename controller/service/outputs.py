"""What the committed steps of a job left in the job store: metrics, plans, and what they used.

An entry's id is its step, counted from 1; pages go on after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from redis.asyncio import Redis

from controller.job_store import JobStore
from controller.journal import StepRecord
from controller.ledger import Usage
from rlhfless import rest
from rlhfless.errors import NotFoundError, UserError
from rlhfless.messages import FunctionName

_STEP = re.compile(r"[0-9]{1,9}")


class Outputs:
    """Of all jobs. Raises as ``controller.redis_calls.answer`` does, and ``UserError`` for an
    ``after`` that is no step."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def metrics(self, job: str, after: str | None, limit: int) -> rest.Page[rest.StepMetrics]:
        records, has_more = await self._records(job, after, limit)
        data = [
            rest.StepMetrics(id=str(r.step + 1), step=r.step + 1, metrics=r.metrics)
            for r in records
        ]
        return rest.Page(data=data, has_more=has_more)

    async def plans(self, job: str, after: str | None, limit: int) -> rest.Page[rest.StepPlan]:
        records, has_more = await self._records(job, after, limit)
        data = [rest.StepPlan(id=str(r.step + 1), step=r.step + 1, plan=r.plan) for r in records]
        return rest.Page(data=data, has_more=has_more)

    async def usage(self, job: str, after: str | None, limit: int) -> rest.Usage:
        """In all and by function as the job's books say, which are a few seconds old at most while
        it runs; by step as each was committed. What lies between steps (evaluations, starts that
        came to nothing) is in the former only."""
        records, has_more = await self._records(job, after, limit)
        notes = await JobStore(self._redis, job).noted("usage", "wall_s")
        functions = msgspec.convert(notes.get("usage", {}), dict[FunctionName, Usage])
        return rest.Usage(
            total=spent(sum(functions.values(), Usage())),
            functions=_by_function(functions),
            wall_s=notes.get("wall_s", 0.0),
            data=[
                rest.StepSpent(id=str(r.step + 1), step=r.step + 1, functions=_by_function(r.usage))
                for r in records
            ],
            has_more=has_more,
        )

    async def committed_step(self, job: str, step: int | None) -> int | None:
        """The step itself, counted from 1, or if it is None the newest, which is None where there
        is none. Raises ``NotFoundError`` if it is not committed."""
        committed = await JobStore(self._redis, job).committed()
        if step is None:
            return committed or None
        if step > committed:
            done = "none is" if committed == 0 else f"{committed} are"
            raise NotFoundError(f"step {step} is not done yet: {done}", param="step")
        return step

    async def _records(
        self, job: str, after: str | None, limit: int
    ) -> tuple[list[StepRecord], bool]:
        start = 0
        if after is not None:
            if not _STEP.fullmatch(after):
                raise UserError(
                    f"{after[:80]!r} is no step",
                    param="after",
                    hint="give the id of the last entry that you have, or nothing for all of them",
                )
            start = int(after)
        records = await JobStore(self._redis, job).records_from(start, limit + 1)
        return records[:limit], len(records) > limit


def spent(usage: Usage) -> rest.Spent:
    return rest.Spent(
        held_s=usage.held_s,
        busy_s=usage.busy_s,
        idle_s=usage.idle_s,
        cold_s=usage.cold_s,
        usd=usage.usd,
    )


def _by_function(usage: Mapping[FunctionName, Usage]) -> dict[str, rest.Spent]:
    return {function: spent(usage[function]) for function in sorted(usage)}
