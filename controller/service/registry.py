"""The registry: every job the service has accepted, whose it is, and how it stands.

    rlhfless:{job}:record           string   the job's record (JSON)
    rlhfless:{job}:secrets          string   what its spec masks, by path (JSON); goes a while after
                                             the job has ended
    rlhfless:jobs:open              set      jobs that have not ended
    rlhfless:jobs:ended             set      ended jobs that were not cleaned up after
                                             (``controller.service.tidying``)
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
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from redis.asyncio import Redis

from controller.fencing import Fence, check_fence, fence_key
from controller.redis_calls import answer
from controller.service.events import JobEvent, add_to, end_in
from controller.service.names import check_tenant
from controller.service.states import FINAL, State, may_follow
from rlhfless.errors import ConflictError, NotFoundError, UserError

MAX_LIMIT = 100
"""Jobs on one page."""
SECRETS_AFTER_END_S = 7 * 24 * 3600
"""Those who hear of a job's end may be out of reach for a while."""
ONCE_FOR_S = 24 * 3600
"""How long an idempotency key is remembered."""
MAX_KEY_CHARS = 255
MAX_OPEN = 1000
"""Jobs of a tenant that have not ended. Every replica looks at all open jobs twice a second."""
WEBHOOK_JOBS = "rlhfless:webhooks"
ENDED_JOBS = "rlhfless:jobs:ended"
_OPEN = "rlhfless:jobs:open"
_ID = re.compile(r"job-[0-9a-f]{28}")


class Entry(msgspec.Struct, frozen=True):
    """When (Unix seconds) and why a job entered a state."""

    at: float
    reason: str | None = None


class Setback(msgspec.Struct, frozen=True):
    """An attempt at the job failed in a way that may pass: the next is made ``at`` (Unix seconds).
    ``attempts``: so many have failed in a row without a step between."""

    at: float
    attempts: int
    detail: str


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``spec`` is the resolved job spec; ``entered`` the last time each state was entered;
    ``error`` the problem document of a failure."""

    id: str
    tenant: str
    spec: dict[str, Any]
    created_at: float
    state: State
    entered: dict[State, Entry]
    setback: Setback | None = None
    error: dict[str, Any] | None = None

    @property
    def updated_at(self) -> float:
        return self.entered[self.state].at

    @property
    def reason(self) -> str | None:
        return self.entered[self.state].reason

    def as_created(self) -> JobRecord:
        """The record as its creation was answered."""
        created = {"queued": Entry(self.created_at)}
        return msgspec.structs.replace(self, state="queued", entered=created)


class JobPage(msgspec.Struct, frozen=True):
    data: list[JobRecord]
    has_more: bool


class _Once(msgspec.Struct, frozen=True):
    job: str
    sha256: str


read_record = msgspec.json.Decoder(JobRecord).decode
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
        ``MAX_OPEN``. ``secrets`` are what the spec masks (``rlhfless.spec_secrets``)."""
        at = self._now()
        record = JobRecord(
            id=_new_id(at),
            tenant=check_tenant(tenant),
            spec=dict(spec),
            created_at=at,
            state="queued",
            entered={"queued": Entry(at)},
        )
        # Without a key of the caller's, one of ours: it tells a lost answer from a lost request.
        once = _once_key(tenant, record.id if idempotency_key is None else idempotency_key)
        digest = _digest(spec)

        async def plan(pipe: Any) -> JobRecord:
            if (raw := await pipe.get(once)) is not None:
                used = _decode_once(raw)
                if used.sha256 != digest:
                    raise ConflictError(
                        "this idempotency key was used for another job",
                        param="Idempotency-Key",
                        hint="use a new key for a new job",
                    )
                return read_record(await pipe.get(_record_key(used.job))).as_created()
            if (num_open := await pipe.scard(_open_key(tenant))) >= MAX_OPEN:
                raise ConflictError(
                    f"{num_open} jobs of your tenant have not ended, which is as many as may be",
                    hint="wait until some have ended, or cancel some",
                )
            pipe.multi()
            pipe.set(once, _encode(_Once(record.id, digest)), ex=ONCE_FOR_S)
            pipe.set(_record_key(record.id), _encode(record))
            if secrets:
                pipe.set(_secrets_key(record.id), _encode(secrets))
            pipe.zadd(_jobs_key(tenant), {record.id: 0})
            pipe.sadd(_OPEN, record.id)
            pipe.sadd(_open_key(tenant), record.id)
            if spec.get("webhooks"):
                pipe.sadd(WEBHOOK_JOBS, f"{tenant} {record.id}")
            add_to(pipe, record.id, _state_event(record))
            return record

        created = await answer(self._redis.transaction(plan, once, value_from_callable=True))
        assert isinstance(created, JobRecord)
        return created

    async def get(self, tenant: str, job: str) -> JobRecord:
        """Raises ``NotFoundError``."""
        _check_id(job)
        return _owned(await answer(self._redis.get(_record_key(job))), tenant, job)

    async def secrets(self, job: str) -> dict[str, str]:
        """What the job's spec masks; for its driver alone."""
        raw = await answer(self._redis.get(_secrets_key(job)))
        return {} if raw is None else msgspec.json.decode(raw, type=dict[str, str])

    async def listed(self, tenant: str, after: str | None = None, limit: int = 20) -> JobPage:
        """The tenant's jobs, newest first, beginning after the job ``after``. Raises ``UserError``
        for a limit that cannot be, ``NotFoundError`` for an ``after`` that is no job's id."""
        if not 1 <= limit <= MAX_LIMIT:
            raise UserError(f"limit must be 1 to {MAX_LIMIT}, got {limit}", param="limit")
        if after is not None:
            _check_id(after, param="after")
        start = "+" if after is None else f"({after}"
        found = self._redis.zrevrangebylex(_jobs_key(tenant), start, "-", 0, limit + 1)
        ids = [id_.decode() for id_ in await answer(found)]
        return JobPage(await self.records(ids[:limit]), len(ids) > limit)

    async def open_jobs(self, tenant: str | None = None) -> list[JobRecord]:
        """The tenant's jobs (None: everybody's) that have not ended, oldest first."""
        return [read_record(raw) for raw in await self.stored_open_jobs(tenant)]

    async def stored_open_jobs(self, tenant: str | None = None) -> list[bytes]:
        """The same as they are stored, for whoever looks often (``read_record``)."""
        key = _OPEN if tenant is None else _open_key(tenant)
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
        _check_id(job)
        key = _record_key(job)

        async def plan(pipe: Any) -> JobRecord:
            if fence is not None:
                await check_fence(pipe, job, fence)
            record = _owned(await pipe.get(key), tenant, job)
            changed = change(record)
            if changed is record:
                return record
            pipe.multi()
            pipe.set(key, _encode(changed))
            if changed.state in FINAL:
                pipe.srem(_OPEN, job)
                pipe.srem(_open_key(tenant), job)
                pipe.sadd(ENDED_JOBS, f"{tenant} {job}")
                pipe.expire(_secrets_key(job), SECRETS_AFTER_END_S)
                end_in(pipe, job)
            if changed.entered != record.entered:
                add_to(pipe, job, _state_event(changed))
            return changed

        transaction = self._redis.transaction(plan, key, fence_key(job), value_from_callable=True)
        changed = await answer(transaction)
        assert isinstance(changed, JobRecord)
        return changed

    async def records(self, ids: list[str]) -> list[JobRecord]:
        """Those that there are, whoever's they are."""
        return [read_record(raw) for raw in await self._stored(ids)]

    async def _stored(self, ids: list[str]) -> list[bytes]:
        if not ids:
            return []
        found = await answer(self._redis.mget([_record_key(id_) for id_ in ids]))
        return [raw for raw in found if raw is not None]


def _check_id(job: str, param: str | None = None) -> None:
    if not _ID.fullmatch(job):
        raise NotFoundError(f"there is no job {job[:80]!r}", param=param)


def _owned(raw: bytes | None, tenant: str, job: str) -> JobRecord:
    record = read_record(raw) if raw is not None else None
    if record is None or record.tenant != tenant:
        raise NotFoundError(f"there is no job {job!r}")
    return record


def _state_event(record: JobRecord) -> JobEvent:
    message = record.state if record.reason is None else f"{record.state}: {record.reason}"
    data = {"state": record.state, "reason": record.reason}
    return JobEvent(
        type="state",
        message=message,
        level="error" if record.state == "failed" else "info",
        data=data,
    )


def _new_id(at: float) -> str:
    """Milliseconds, so that ids sort by age, and 64 random bits, so that none is guessed."""
    return f"job-{int(at * 1000):012x}{secrets.token_hex(8)}"


def _digest(spec: Mapping[str, Any]) -> str:
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _record_key(job: str) -> str:
    return f"rlhfless:{{{job}}}:record"


def _secrets_key(job: str) -> str:
    return f"rlhfless:{{{job}}}:secrets"


def _jobs_key(tenant: str) -> str:
    return f"rlhfless:tenant:{tenant}:jobs"


def _open_key(tenant: str) -> str:
    return f"rlhfless:tenant:{tenant}:open"


def _once_key(tenant: str, key: str) -> str:
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise UserError(
            f"an idempotency key has 1 to {MAX_KEY_CHARS} characters", param="Idempotency-Key"
        )
    return f"rlhfless:tenant:{tenant}:once:{hashlib.sha256(key.encode()).hexdigest()}"
