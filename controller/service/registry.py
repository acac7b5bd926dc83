"""The registry: every job the service has accepted, whose it is, and how it stands.

    rlhfless:{job}:record           string   the job's record (JSON)
    rlhfless:{job}:secrets          string   what its spec masks, by path (JSON); goes a while after
                                             the job has ended
    rlhfless:jobs:open              set      jobs that have not ended
    rlhfless:{job}:users            set      open jobs whose model is a checkpoint of this one's
    rlhfless:jobs:ended             set      "tenant job" of ended jobs that were not cleaned up
                                             after (``controller.service.tidying``)
    rlhfless:jobs:kept              sorted   "tenant job" of all ended jobs, by when they ended
    rlhfless:jobs:removed           set      jobs of which something is left that is to go
                                             (``controller.service.removal``)
    rlhfless:webhooks               set      jobs whose webhooks were not told all
                                             (``controller.service.webhook_sender``)
    rlhfless:tenant:<t>:jobs        sorted   the tenant's job ids, by id
    rlhfless:tenant:<t>:open        set      those of them that have not ended
    rlhfless:tenant:<t>:once:<key>  string   what an idempotency key was used for

Each change is one transaction: a job is in all of these or in none, its change of state and the
event that tells of it happen together, and of two that would change a state at once the second sees
what the first did. A job id begins with the time of its creation, so ids sort by age.

A tenant's jobs are found under its name alone: another's job is answered as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from redis.asyncio import Redis

from controller.fencing import Fence, check_fence, fence_key
from controller.redis_calls import answer
from controller.service.events import add_to, end_in
from controller.service.names import check_tenant
from controller.service.records import (
    ENDED_JOBS,
    KEPT_JOBS,
    OPEN_JOBS,
    WEBHOOK_JOBS,
    Entry,
    JobPage,
    JobRecord,
    Setback,
    check_id,
    jobs_key,
    new_id,
    open_key,
    owned,
    read_record,
    record_key,
    secrets_key,
    state_event,
    users_key,
    write_record,
)
from controller.service.references import checkpoint_job
from controller.service.states import FINAL, State, may_follow
from rlhfless.errors import ConflictError, UserError

MAX_LIMIT = 100
"""Jobs on one page."""
SECRETS_AFTER_END_S = 7 * 24 * 3600
"""Those who hear of a job's end may be out of reach for a while."""
ONCE_FOR_S = 24 * 3600
"""How long an idempotency key is remembered."""
MAX_KEY_CHARS = 255
MAX_OPEN = 1000
"""Jobs of a tenant that have not ended. Every replica looks at all open jobs twice a second."""


class _Once(msgspec.Struct, frozen=True):
    job: str
    sha256: str


_decode_once = msgspec.json.Decoder(_Once).decode
_encode = msgspec.json.encode


class Registry:
    """All jobs. Raises as ``controller.redis_calls.answer`` does."""

    def __init__(self, redis: Redis, now: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._now = now

    async def create(
        self,
        tenant: str,
        spec: Mapping[str, Any],
        idempotency_key: str | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> JobRecord:
        """Accept a job. The same idempotency key and spec again give the first answer and no second
        job; the same key with another spec raises ``ConflictError``, and so does a job beyond
        ``MAX_OPEN``. ``secrets`` are what the spec masks (``rlhfless.spec_secrets``). Raises
        ``NotFoundError`` if the job whose checkpoint it begins with was removed just now."""
        at = self._now()
        record = JobRecord(
            id=new_id(at),
            tenant=check_tenant(tenant),
            spec=dict(spec),
            created_at=at,
            state="queued",
            entered={"queued": Entry(at)},
        )
        # Without a key of the caller's, one of ours: it tells a lost answer from a lost request.
        once = _once_key(tenant, record.id if idempotency_key is None else idempotency_key)
        digest = _digest(spec)
        base = checkpoint_job(spec)

        async def plan(pipe: Any) -> JobRecord:
            if (raw := await pipe.get(once)) is not None:
                used = _decode_once(raw)
                if used.sha256 != digest:
                    raise ConflictError(
                        "this idempotency key was used for another job",
                        param="Idempotency-Key",
                        hint="use a new key for a new job",
                    )
                raw = await pipe.get(record_key(used.job))
                if raw is None or (made := read_record(raw)).removed:
                    raise ConflictError(
                        f"this idempotency key was used for the job {used.job}, which was deleted",
                        param="Idempotency-Key",
                        hint="use a new key for a new job",
                    )
                return made.as_created()
            if base is not None:
                owned(await pipe.get(record_key(base)), tenant, base, "model.path")
            if (num_open := await pipe.scard(open_key(tenant))) >= MAX_OPEN:
                raise ConflictError(
                    f"{num_open} jobs of your tenant have not ended, which is as many as may be",
                    hint="wait until some have ended, or cancel some",
                )
            pipe.multi()
            pipe.set(once, _encode(_Once(record.id, digest)), ex=ONCE_FOR_S)
            pipe.set(record_key(record.id), write_record(record))
            if secrets:
                pipe.set(secrets_key(record.id), _encode(secrets))
            pipe.zadd(jobs_key(tenant), {record.id: 0})
            pipe.sadd(OPEN_JOBS, record.id)
            pipe.sadd(open_key(tenant), record.id)
            if base is not None:
                pipe.sadd(users_key(base), record.id)
            if spec.get("webhooks"):
                pipe.sadd(WEBHOOK_JOBS, f"{tenant} {record.id}")
            add_to(pipe, record.id, state_event(record))
            return record

        watched = (once,) if base is None else (once, record_key(base))
        created = await answer(self._redis.transaction(plan, *watched, value_from_callable=True))
        assert isinstance(created, JobRecord)
        return created

    async def get(self, tenant: str, job: str) -> JobRecord:
        """Raises ``NotFoundError``."""
        check_id(job)
        return owned(await answer(self._redis.get(record_key(job))), tenant, job)

    async def secrets(self, job: str) -> dict[str, str]:
        """What the job's spec masks; for its driver alone."""
        raw = await answer(self._redis.get(secrets_key(job)))
        return {} if raw is None else msgspec.json.decode(raw, type=dict[str, str])

    async def listed(self, tenant: str, after: str | None = None, limit: int = 20) -> JobPage:
        """The tenant's jobs, newest first, beginning after the job ``after``. Raises ``UserError``
        for a limit that cannot be, ``NotFoundError`` for an ``after`` that is no job's id."""
        if not 1 <= limit <= MAX_LIMIT:
            raise UserError(f"limit must be 1 to {MAX_LIMIT}, got {limit}", param="limit")
        if after is not None:
            check_id(after, param="after")
        start = "+" if after is None else f"({after}"
        found = self._redis.zrevrangebylex(jobs_key(tenant), start, "-", 0, limit + 1)
        ids = [id_.decode() for id_ in await answer(found)]
        records = await self.records(ids[:limit])
        return JobPage([record for record in records if not record.removed], len(ids) > limit)

    async def open_jobs(self, tenant: str | None = None) -> list[JobRecord]:
        """The tenant's jobs (None: everybody's) that have not ended, oldest first."""
        return [read_record(raw) for raw in await self.stored_open_jobs(tenant)]

    async def stored_open_jobs(self, tenant: str | None = None) -> list[bytes]:
        """The same as they are stored, for whoever looks often (``read_record``)."""
        key = OPEN_JOBS if tenant is None else open_key(tenant)
        ids = await answer(self._redis.smembers(key))
        return await self._stored(sorted(id_.decode() for id_ in ids))

    async def move(
        self,
        tenant: str,
        job: str,
        state: State,
        reason: str | None = None,
        *,
        fence: Fence | None = None,
        only_from: State | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> JobRecord:
        """Bring a job into a state; one that is in it already is left as it is, and so is one that
        is not in the state ``only_from``. Raises ``ConflictError`` if the state cannot follow the
        job's, ``NotFoundError``, and with a ``fence`` ``LostLeaseError`` if it is no longer
        valid."""

        def moved(record: JobRecord) -> JobRecord:
            if record.state == state or only_from not in (None, record.state):
                return record
            return msgspec.structs.replace(
                self._entering(record, state, reason),
                error=None if error is None else dict(error),
                setback=None,
            )

        return await self._change(tenant, job, moved, fence)

    async def take_up(self, tenant: str, job: str, fence: Fence) -> JobRecord:
        """A job that waited runs; one that another replica drove before goes on as it was asked to,
        so that a pause outlives whoever was to make it. Raises as ``move``."""

        def taken(record: JobRecord) -> JobRecord:
            if record.state in ("running", "pausing"):
                return record
            return msgspec.structs.replace(self._entering(record, "running", None), setback=None)

        return await self._change(tenant, job, taken, fence)

    async def put_back(self, tenant: str, job: str, setback: Setback, *, fence: Fence) -> JobRecord:
        """After a setback a job waits for its next attempt; one that was asked to pause is paused,
        and its open step is repeated when it is resumed. Raises as ``move``."""

        def back(record: JobRecord) -> JobRecord:
            if record.state == "pausing":
                reason = f"{record.reason}; the open step is to be repeated: {setback.detail}"
                return self._entering(record, "paused", reason)
            reason = f"tried again after a setback: {setback.detail}"
            return msgspec.structs.replace(
                self._entering(record, "queued", reason), setback=setback
            )

        return await self._change(tenant, job, back, fence)

    async def pause(self, tenant: str, job: str, reason: str) -> JobRecord:
        """A job that runs ends its open step first; one that waits pauses at once. Raises as
        ``move``."""

        def paused(record: JobRecord) -> JobRecord:
            if record.state in ("pausing", "paused"):
                return record
            state: State = "paused" if record.state == "queued" else "pausing"
            return self._entering(record, state, reason)

        return await self._change(tenant, job, paused)

    async def resume(
        self, tenant: str, job: str, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> JobRecord:
        """Queue a paused job again, with what ``change`` makes of its spec; one that is still
        pausing goes on. Nothing happens to one that is on its way. Raises as ``move``."""

        def resumed(record: JobRecord) -> JobRecord:
            if record.state in ("queued", "running"):
                return record
            state: State = "running" if record.state == "pausing" else "queued"
            again = self._entering(record, state, "by its owner")
            return msgspec.structs.replace(again, spec=change(record.spec), setback=None)

        return await self._change(tenant, job, resumed)

    def _entering(self, record: JobRecord, state: State, reason: str | None) -> JobRecord:
        if not may_follow(record.state, state):
            raise ConflictError(f"job {record.id} is {record.state}: it cannot become {state}")
        entered = {**record.entered, state: Entry(self._now(), reason)}
        return msgspec.structs.replace(record, state=state, entered=entered)

    async def _change(
        self,
        tenant: str,
        job: str,
        change: Callable[[JobRecord], JobRecord],
        fence: Fence | None = None,
    ) -> JobRecord:
        """Replace a record by what ``change`` makes of it, and say so if its state is another."""
        check_id(job)
        key = record_key(job)

        async def plan(pipe: Any) -> JobRecord:
            if fence is not None:
                await check_fence(pipe, job, fence)
            record = owned(await pipe.get(key), tenant, job)
            changed = change(record)
            if changed is record:
                return record
            pipe.multi()
            pipe.set(key, write_record(changed))
            if changed.state in FINAL:
                pipe.srem(OPEN_JOBS, job)
                pipe.srem(open_key(tenant), job)
                pipe.sadd(ENDED_JOBS, f"{tenant} {job}")
                pipe.zadd(KEPT_JOBS, {f"{tenant} {job}": changed.updated_at})
                if (base := checkpoint_job(record.spec)) is not None:
                    pipe.srem(users_key(base), job)
                pipe.expire(secrets_key(job), SECRETS_AFTER_END_S)
                end_in(pipe, job)
            if changed.entered != record.entered:
                add_to(pipe, job, state_event(changed))
            return changed

        transaction = self._redis.transaction(plan, key, fence_key(job), value_from_callable=True)
        changed = await answer(transaction)
        assert isinstance(changed, JobRecord)
        return changed

    async def records(self, ids: list[str]) -> list[JobRecord]:
        """Those that there are, whoever's they are, and removed ones as long as something of them
        is left."""
        return [read_record(raw) for raw in await self._stored(ids)]

    async def _stored(self, ids: list[str]) -> list[bytes]:
        if not ids:
            return []
        found = await answer(self._redis.mget([record_key(id_) for id_ in ids]))
        return [raw for raw in found if raw is not None]


def _digest(spec: Mapping[str, Any]) -> str:
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _once_key(tenant: str, key: str) -> str:
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise UserError(
            f"an idempotency key has 1 to {MAX_KEY_CHARS} characters", param="Idempotency-Key"
        )
    return f"rlhfless:tenant:{tenant}:once:{hashlib.sha256(key.encode()).hexdigest()}"
