"""The fair queue at work: every replica takes turns at dealing out the instances.

    rlhfless:queue   string   grants, holds, what was served, why others wait (JSON)

A turn is one transaction: it charges the jobs for what they held since the last turn, asks
``controller.service.queue`` who should have what, and settles what each may have now
(``controller.service.holds``). Any replica may take a turn, at any time; nobody leads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis

from controller.redis_calls import answer
from controller.service.holds import Hold, settle
from controller.service.queue import (
    PATIENCE_INSTANCE_S,
    Candidate,
    Decision,
    Quota,
    Served,
    charge,
    decide,
)

QUEUE = "rlhfless:queue"


class QueueState(msgspec.Struct, frozen=True):
    """As of ``at_s`` (Redis's clock). ``grants``, ``holds``: instances by job; ``waiting``: why a
    job that is open has no grant."""

    at_s: float = 0.0
    grants: dict[str, int] = {}
    holds: dict[str, Hold] = {}
    waiting: dict[str, str] = {}
    shares: dict[str, float] = {}
    served: Served = Served()

    def held(self, job: str) -> int:
        return self.holds[job].instances if job in self.holds else 0


_decode = msgspec.json.Decoder(QueueState).decode


def read_queue(stored: bytes | None) -> QueueState:
    """What is stored under ``QUEUE``."""
    return QueueState() if stored is None else _decode(stored)


class Shares:
    """Raises as ``controller.redis_calls.answer`` does."""

    def __init__(
        self, redis: Redis, instances: int, patience_instance_s: float = PATIENCE_INSTANCE_S
    ) -> None:
        self._redis = redis
        self._instances = instances
        self._patience_instance_s = patience_instance_s

    async def read(self) -> QueueState:
        """As the last turn left it."""
        return read_queue(await answer(self._redis.get(QUEUE)))

    async def turn(
        self,
        candidates: Sequence[Candidate],
        quotas: Mapping[str, Quota],
        used: Mapping[str, int],
        barred: Mapping[str, str],
        let_go: Collection[str] = (),
    ) -> QueueState:
        """Deal out anew. ``candidates``: every open job that may run; ``used``: instances that the
        jobs driven by whoever asks have now; ``barred``: why other open jobs may not run;
        ``let_go``: jobs that whoever asks drives no longer."""

        async def plan(pipe: Any) -> QueueState:
            raw = await pipe.get(QUEUE)
            seconds, microseconds = await pipe.time()
            now_s = seconds + microseconds / 1e6
            before = read_queue(raw)
            after = self._dealt(before, candidates, quotas, used, barred, let_go, now_s)
            pipe.multi()
            pipe.set(QUEUE, msgspec.json.encode(after))
            return after

        dealt = await answer(self._redis.transaction(plan, QUEUE, value_from_callable=True))
        assert isinstance(dealt, QueueState)
        return dealt

    def _dealt(
        self,
        before: QueueState,
        candidates: Sequence[Candidate],
        quotas: Mapping[str, Quota],
        used: Mapping[str, int],
        barred: Mapping[str, str],
        let_go: Collection[str],
        now_s: float,
    ) -> QueueState:
        held = {job: hold.instances for job, hold in before.holds.items() if job in before.shares}
        last = Decision(held, {}, before.shares, before.served)
        served = charge(last, max(0.0, now_s - before.at_s)) if before.at_s else before.served
        decision = decide(candidates, quotas, self._instances, served, self._patience_instance_s)
        least = {job.job: job.least for job in candidates}
        kept = {job: hold for job, hold in before.holds.items() if job not in let_go}
        holds = settle(kept, decision.grants, least, used, self._instances, now_s)
        return QueueState(
            at_s=now_s,
            grants=dict(decision.grants),
            holds=holds,
            waiting={**decision.waiting, **barred},
            shares=dict(decision.shares),
            served=decision.served,
        )
