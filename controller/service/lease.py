"""The lease on a job: at any time one controller replica drives it.

A lease is a Redis key that expires by Redis's own clock. Its holder renews it and counts the time
since it last asked for a renewal that was granted; so it stops, by its own clock, no later than
Redis gives the lease away. That alone is no safety (a process may sleep at any point), hence the
fence: what a holder writes names its fence, and is refused once another was granted.

    rlhfless:{job}:lease   string  the holder's fence; expires
    rlhfless:{job}:fence   string  the fence granted last; stays (``controller.fencing``)
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio import Redis

from controller.fencing import Fence, LostLeaseError, check_fence, fence_key
from controller.redis_calls import answer
from rlhfless.errors import CapacityError, TransientError

TTL_S = 6.0
"""After its replica died, a job is without a driver for so long at most."""
RENEWALS_A_TTL = 4


@dataclass(frozen=True)
class Lease:
    """``until_s``, by the loop's clock: when it ends unless it is renewed."""

    job: str
    fence: Fence
    until_s: float


class Leases:
    """The leases that this replica takes. Raises as ``controller.redis_calls.answer`` does."""

    def __init__(self, redis: Redis, replica: str, ttl_s: float = TTL_S) -> None:
        self._redis = redis
        self._replica = replica
        self._ttl_s = ttl_s

    async def acquire(self, job: str) -> Lease | None:
        """The lease on a job, with a fence newer than all before; None if somebody holds it."""
        key = lease_key(job)
        holder = f"{self._replica}/{uuid.uuid4().hex}"

        async def plan(pipe: Any) -> Fence | None:
            held = await pipe.get(key)
            if held is not None:
                fence = Fence.parse(held)
                # Ours: an earlier attempt was granted, and only its answer was lost.
                return fence if fence.holder == holder else None
            last = await pipe.get(fence_key(job))
            fence = Fence(1 if last is None else Fence.parse(last).token + 1, holder)
            pipe.multi()
            pipe.set(fence_key(job), str(fence))
            pipe.set(key, str(fence), px=self._ttl_ms)
            return fence

        until_s = self._until()
        transaction = self._redis.transaction(plan, key, fence_key(job), value_from_callable=True)
        fence = await answer(transaction)
        return None if fence is None else Lease(job, fence, until_s)

    async def renew(self, lease: Lease) -> Lease:
        """The lease with its full time before it; one that ran out is taken back if nobody has
        taken it since. Raises ``LostLeaseError`` if somebody has."""
        key = lease_key(lease.job)

        async def plan(pipe: Any) -> None:
            await check_fence(pipe, lease.job, lease.fence)
            pipe.multi()
            pipe.set(key, str(lease.fence), px=self._ttl_ms)

        until_s = self._until()
        await answer(self._redis.transaction(plan, key, fence_key(lease.job)))
        return Lease(lease.job, lease.fence, until_s)

    async def release(self, lease: Lease) -> None:
        """Give the lease up; others need not wait until it runs out."""
        key = lease_key(lease.job)

        async def plan(pipe: Any) -> None:
            if await pipe.get(key) == str(lease.fence).encode():
                pipe.multi()
                pipe.delete(key)

        await answer(self._redis.transaction(plan, key))

    async def holder(self, job: str) -> Fence | None:
        """Who holds the lease on a job now."""
        held = await answer(self._redis.get(lease_key(job)))
        return None if held is None else Fence.parse(held)

    @contextlib.asynccontextmanager
    async def keeping(self, lease: Lease) -> AsyncIterator[None]:
        """Renews the lease while the body runs and releases it after. The body is cancelled, and
        ``LostLeaseError`` raised, when another replica has taken the lease or it could not be
        renewed in time."""
        timeout = asyncio.timeout_at(lease.until_s)
        lost = False
        try:
            async with timeout:
                renewing = asyncio.create_task(self._renewing(lease, timeout))
                try:
                    yield
                finally:
                    renewing.cancel()
                    await asyncio.wait({renewing})
                    if not renewing.cancelled():
                        renewing.result()  # raises what ended it, if that was a defect
        except TimeoutError as error:
            if not timeout.expired():
                raise
            lost = True
            raise LostLeaseError(f"the lease on job {lease.job} was lost") from error
        finally:
            if not lost:
                with contextlib.suppress(TransientError, CapacityError):
                    await self.release(lease)  # if that fails, it runs out by itself

    async def _renewing(self, lease: Lease, limit: asyncio.Timeout) -> None:
        """Until it is cancelled, or the lease is lost: then ``limit`` is reached at once."""
        loop = asyncio.get_running_loop()
        while lease.until_s > loop.time():
            await asyncio.sleep(self._ttl_s / RENEWALS_A_TTL)
            try:
                lease = await self.renew(lease)
            except LostLeaseError:
                lease = replace(lease, until_s=loop.time())
            except (TransientError, CapacityError):
                continue  # there is time for another attempt, or the timeout comes first
            if limit.expired():
                return
            limit.reschedule(lease.until_s)

    @property
    def _ttl_ms(self) -> int:
        return round(self._ttl_s * 1000)

    def _until(self) -> float:
        """When a lease granted from now on ends at the earliest."""
        return asyncio.get_running_loop().time() + self._ttl_s


def lease_key(job: str) -> str:
    return f"rlhfless:{{{job}}}:lease"
