"""Jobs that are removed: by their owner, or because they ended longer ago than jobs are kept.

First a job is marked and taken off its tenant's list, in one transaction: from then on it is
answered as if it had never been. What it left, in the object store and in Redis, goes a little
later, when nobody writes to it any more. What it used stays booked for its tenant's months.

Any replica does either part, several may at once: each piece of work may be repeated, and is gone
on with by whoever comes next where a replica died over it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import time
from collections.abc import Callable, Collection
from typing import Any

import msgspec
from redis.asyncio import Redis

from controller.garbage import remove_job
from controller.redis_calls import answer
from controller.service.accounting import UNSETTLED
from controller.service.lease import lease_key
from controller.service.records import (
    ENDED_JOBS,
    KEPT_JOBS,
    REMOVED_JOBS,
    WEBHOOK_JOBS,
    JobRecord,
    check_id,
    jobs_key,
    owned,
    read_record,
    record_key,
    secrets_key,
    users_key,
    write_record,
)
from controller.service.service import Service
from controller.service.states import FINAL
from rlhfless.errors import ConflictError, NotFoundError

LET_GO_S = 600.0
"""A job's driver, and its functions, have let go of it so long after its end."""
PORTION = 500
"""Jobs at once."""
SCANNED = 1000
"""Keys that Redis looks at in one go, about a millisecond."""
DAY_S = 24 * 3600.0
_JOB_KEY = re.compile(rb"rlhfless:\{(job-[0-9a-f]{28})\}:.*", re.DOTALL)
_log = logging.getLogger(__name__)


async def remove(redis: Redis, tenant: str, job: str) -> JobRecord:
    """Forget an ended job; the record it had. Raises ``NotFoundError``, and ``ConflictError`` if it
    has not ended or one of its checkpoints is the model of a job that has not. Raises as
    ``controller.redis_calls.answer`` does."""
    check_id(job)
    key, users = record_key(job), users_key(job)
    begun: JobRecord | None = None

    async def plan(pipe: Any) -> JobRecord:
        nonlocal begun
        raw = await pipe.get(key)
        if begun is not None and raw is not None and read_record(raw).removed:
            return begun  # an earlier attempt did it, and only its answer was lost
        record = begun = owned(raw, tenant, job)
        if record.state not in FINAL:
            raise ConflictError(
                f"job {job} is {record.state}: only jobs that have ended can be deleted",
                hint="cancel it first",
            )
        if using := await pipe.smembers(users):
            raise ConflictError(
                f"a checkpoint of job {job} is the model of {min(using).decode()}, "
                "which has not ended",
                hint="delete it when that job has ended, or cancel that job",
            )
        pipe.multi()
        pipe.set(key, write_record(msgspec.structs.replace(record, removed=True)))
        pipe.delete(secrets_key(job))
        pipe.zrem(jobs_key(tenant), job)
        pipe.srem(ENDED_JOBS, f"{tenant} {job}")
        pipe.zrem(KEPT_JOBS, f"{tenant} {job}")
        pipe.sadd(REMOVED_JOBS, job)
        return record

    removed = await answer(redis.transaction(plan, key, users, value_from_callable=True))
    assert isinstance(removed, JobRecord)
    return removed


async def remove_old(service: Service, now: Callable[[], float] = time.time) -> int:
    """Remove the jobs that ended longer ago than ``Settings.keep_days``; how many those were. One
    whose checkpoint an open job begins with stays until that one has ended. Raises as
    ``controller.redis_calls.answer`` does."""
    if service.settings.keep_days is None:
        return 0
    redis, until = service.redis, now() - service.settings.keep_days * DAY_S
    removed = kept = 0
    while True:
        due = await answer(redis.zrangebyscore(KEPT_JOBS, "-inf", until, kept, PORTION))
        for member in due:
            tenant, _, job = member.decode().partition(" ")
            try:
                await remove(redis, tenant, job)
            except ConflictError:
                kept += 1
            except NotFoundError:  # another replica was faster
                await answer(redis.zrem(KEPT_JOBS, member))
            else:
                removed += 1
        if len(due) < PORTION:
            break
    if removed:
        _log.info("%d jobs that ended long ago were removed", removed)
    return removed


async def clear_away(service: Service, now: Callable[[], float] = time.time) -> int:
    """Remove what a portion of the removed jobs left, and all their keys; how many jobs those were.
    Raises as ``controller.redis_calls.answer`` and ``ObjectStore`` do."""
    redis = service.redis
    # Any of them: several replicas at once then seldom do the same.
    drawn = await answer(redis.srandmember(REMOVED_JOBS, PORTION))
    jobs = await _let_go(service, sorted(job.decode() for job in drawn), now())
    if not jobs:
        return 0
    for job in jobs:
        await asyncio.to_thread(_remove_outputs, service, job)
    await _remove_keys(redis, jobs)
    await answer(redis.srem(REMOVED_JOBS, *jobs))
    return len(jobs)


async def _let_go(service: Service, jobs: list[str], now_s: float) -> list[str]:
    """Those that nobody writes to any more: driver, bookkeeper or webhooks."""
    if not jobs:
        return []
    pipe = service.redis.pipeline(transaction=False)
    pipe.mget([record_key(job) for job in jobs])
    pipe.mget([lease_key(job) for job in jobs])
    pipe.smembers(UNSETTLED)
    pipe.smembers(WEBHOOK_JOBS)
    stored, leases, unsettled, telling = await answer(pipe.execute())
    busy = {raw.decode().rpartition(" ")[2] for raw in unsettled | telling}
    return [
        job
        for job, raw, lease in zip(jobs, stored, leases, strict=True)
        if job not in busy
        and lease is None
        # Without a record: whoever removed its keys did not live to say so.
        and (raw is None or now_s - read_record(raw).updated_at >= LET_GO_S)
    ]


def _remove_outputs(service: Service, job: str) -> None:
    """In the store, and what trackers wrote to this replica's own disk."""
    remove_job(service.objects, job)
    for names in (("trackers", job), ("logs", "trackers", job)):
        shutil.rmtree(service.settings.file(*names), ignore_errors=True)


async def _remove_keys(redis: Redis, jobs: Collection[str]) -> None:
    """All keys of some jobs, whoever keeps something there: one look at every key that Redis has,
    in small pieces."""
    cursor: int | None = None
    while cursor != 0:
        scan = redis.scan(cursor or 0, match="rlhfless:{job-*", count=SCANNED)
        cursor, found = await answer(scan)
        theirs = [
            key for key in found if (of := _JOB_KEY.fullmatch(key)) and of[1].decode() in jobs
        ]
        if theirs:
            await answer(redis.unlink(*theirs))
