"""How long jobs are without a driver when theirs is lost; seen in Redis, from outside.

A job's fence names the replica that drives it, by host and process. Whoever does something to a
replica says so (``lost``); from then on each job it drove is watched until another replica holds
it, and until it has done one step more.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from controller.fencing import Fence, fence_key

POLL_S = 0.1
_OPEN = "rlhfless:jobs:open"


@dataclass
class Takeover:
    """``taken_s``, ``step_s``: seconds after the loss."""

    job: str
    kind: str
    at_s: float
    fence: Fence
    committed: int
    taken_s: float | None = None
    step_s: float | None = None


@dataclass
class Takeovers:
    """``redis``: straight to it. ``done``: those that came to be."""

    redis: Redis
    done: list[Takeover] = field(default_factory=list)
    _open: list[Takeover] = field(default_factory=list)
    _known: dict[str, tuple[Fence, int]] = field(default_factory=dict)
    """Fence and committed steps of each open job that somebody drives."""

    def lost(self, pid: int, kind: str) -> int:
        """The replica of this process is lost; the number of jobs that it drove."""
        now_s = asyncio.get_running_loop().time()
        found = [
            Takeover(job, kind, now_s, fence, committed)
            for job, (fence, committed) in self._known.items()
            if f"-{pid}-" in fence.holder
        ]
        self._open += found
        return len(found)

    def back(self, pid: int) -> None:
        """It was not lost for good: what it still drives nobody needed to take."""
        self._open = [
            one
            for one in self._open
            if one.taken_s is not None or f"-{pid}-" not in one.fence.holder
        ]

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            with contextlib.suppress(RedisError, OSError):
                await self._look()
            await asyncio.sleep(POLL_S)

    async def _look(self) -> None:
        members = cast("set[bytes]", await self.redis.smembers(_OPEN))
        jobs = sorted(raw.decode() for raw in members)
        pipe = self.redis.pipeline(transaction=False)
        for job in jobs:
            pipe.get(fence_key(job))
            pipe.get(f"rlhfless:{{{job}}}:lease")
            pipe.get(f"rlhfless:{{{job}}}:committed")
        found = await pipe.execute()
        now_s = asyncio.get_running_loop().time()
        fences = {
            job: (Fence.parse(found[3 * n]), int(found[3 * n + 2] or 0))
            for n, job in enumerate(jobs)
            if found[3 * n] is not None
        }
        leased = {job for n, job in enumerate(jobs) if found[3 * n + 1] is not None}
        self._known = {job: one for job, one in fences.items() if job in leased}
        for one in self._open:
            if one.job not in fences:
                continue
            fence, committed = fences[one.job]
            if one.taken_s is None and fence != one.fence:
                one.taken_s = now_s - one.at_s
                self.done.append(one)
            if one.taken_s is not None and committed > one.committed:
                one.step_s = now_s - one.at_s
        self._open = [o for o in self._open if o.job in fences and o.step_s is None]
