"""Tenants: what each may have, and what it has used this month.

    rlhfless:tenants                        hash    tenant -> its limits (JSON)
    rlhfless:tenant:<t>:usage:<yyyy-mm>     hash    what it used in that month (UTC)
    rlhfless:{job}:booked                   string  how much of a job is in there (JSON)

A job's books only grow, so usage is booked by totals: what a total is above the one booked before
is added to the month, in the transaction that notes the total. Whoever books the same again, after
a crash or a lost answer, adds nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from redis.asyncio import Redis

from controller.fencing import Fence, check_fence, fence_key
from controller.ledger import Usage
from controller.redis_calls import answer
from controller.service.names import check_tenant
from controller.service.queue import Quota
from rlhfless.errors import UserError

_TENANTS = "rlhfless:tenants"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant may have, None: no bound but the service's. ``max_jobs`` run at once;
    function-seconds and dollars are of a calendar month (UTC)."""

    weight: float = 1.0
    max_jobs: int | None = None
    max_instances: int | None = None
    max_function_seconds: float | None = None
    max_usd: float | None = None

    def of_queue(self) -> Quota:
        """As the fair queue has it."""
        return Quota(self.weight, max_instances=self.max_instances, max_jobs=self.max_jobs)


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """Held instance-seconds of all functions. ``usd`` is of those with a known price;
    ``unpriced_seconds`` are the others."""

    function_seconds: float = 0.0
    usd: float = 0.0
    unpriced_seconds: float = 0.0

    @classmethod
    def of(cls, usage: Mapping[Any, Usage]) -> Used:
        """The sum over functions."""
        return cls(
            function_seconds=sum(one.held_s for one in usage.values()),
            usd=sum(one.usd or 0.0 for one in usage.values()),
            unpriced_seconds=sum(one.held_s for one in usage.values() if one.usd is None),
        )


_AMOUNTS = Used.__struct_fields__
_decode_limits = msgspec.json.Decoder(Limits).decode
_decode_used = msgspec.json.Decoder(Used).decode
_encode = msgspec.json.encode


class Tenants:
    """All tenants. Nobody creates one: it is there once it has a key or limits. Raises as
    ``controller.redis_calls.answer`` does."""

    def __init__(
        self, redis: Redis, defaults: Limits | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._redis = redis
        self._defaults = defaults or Limits()
        self._now = now

    async def limits(self, tenant: str) -> Limits:
        """Its own, else the defaults."""
        raw = await answer(self._redis.hget(_TENANTS, tenant))
        return self._defaults if raw is None else _decode_limits(raw)

    async def limits_of(self, tenants: Iterable[str]) -> dict[str, Limits]:
        """As ``limits``, of several."""
        names = sorted(set(tenants))
        if not names:
            return {}
        raw = await answer(self._redis.hmget(_TENANTS, names))
        found = (self._defaults if one is None else _decode_limits(one) for one in raw)
        return dict(zip(names, found, strict=True))

    async def listed(self) -> dict[str, Limits]:
        """Every tenant that has limits of its own."""
        raw = await answer(self._redis.hgetall(_TENANTS))
        return {name.decode(): _decode_limits(one) for name, one in sorted(raw.items())}

    async def change(self, tenant: str, changes: Mapping[str, float | int | None]) -> Limits:
        """Set some of a tenant's limits; the others stay. Raises ``UserError`` for those that
        cannot be."""
        check_tenant(tenant)

        async def plan(pipe: Any) -> Limits:
            raw = await pipe.hget(_TENANTS, tenant)
            old = self._defaults if raw is None else _decode_limits(raw)
            new = msgspec.structs.replace(old, **changes)
            _check(new)
            pipe.multi()
            pipe.hset(_TENANTS, tenant, _encode(new))
            return new

        changed = await answer(self._redis.transaction(plan, _TENANTS, value_from_callable=True))
        assert isinstance(changed, Limits)
        return changed

    async def book(
        self, tenant: str, job: str, usage: Mapping[Any, Usage], fence: Fence | None = None
    ) -> float:
        """Book what a job has used in all so far, by function; the function-seconds that were not
        booked before. With a ``fence``, raises ``LostLeaseError`` if it is no longer valid."""
        total = Used.of(usage)
        key = _booked_key(job)

        async def plan(pipe: Any) -> float:
            if fence is not None:
                await check_fence(pipe, job, fence)
            raw = await pipe.get(key)
            booked = Used() if raw is None else _decode_used(raw)
            pairs = {name: (getattr(booked, name), getattr(total, name)) for name in _AMOUNTS}
            if all(new <= old for old, new in pairs.values()):
                return 0.0
            pipe.multi()
            month = _usage_key(tenant, self.month())
            for name, (old, new) in pairs.items():
                if new > old:
                    pipe.hincrbyfloat(month, name, new - old)
            pipe.set(key, _encode(Used(**{name: max(pair) for name, pair in pairs.items()})))
            return max(0.0, total.function_seconds - booked.function_seconds)

        transaction = self._redis.transaction(plan, key, fence_key(job), value_from_callable=True)
        fresh = await answer(transaction)
        assert isinstance(fresh, float)
        return fresh

    async def usage(self, tenant: str, month: str | None = None) -> Used:
        """What a tenant used in a month, ``yyyy-mm``; None: this one."""
        raw = await answer(self._redis.hgetall(_usage_key(tenant, month or self.month())))
        return _used(raw)

    async def over_quota(self, limits: Mapping[str, Limits]) -> dict[str, str]:
        """Of the tenants whose jobs may not run on this month, why not."""
        month = self.month()
        bounded = [
            name
            for name, one in limits.items()
            if one.max_function_seconds is not None or one.max_usd is not None
        ]
        if not bounded:
            return {}
        pipe = self._redis.pipeline(transaction=False)
        for name in bounded:
            pipe.hgetall(_usage_key(name, month))
        over: dict[str, str] = {}
        for name, raw in zip(bounded, await answer(pipe.execute()), strict=True):
            used, most = _used(raw), limits[name]
            if _reached(used.function_seconds, most.max_function_seconds):
                over[name] = (
                    f"its tenant has used the {most.max_function_seconds:g} function-seconds "
                    f"it may use in {month}"
                )
            elif _reached(used.usd, most.max_usd):
                over[name] = (
                    f"its tenant has spent the {most.max_usd:g} USD it may spend in {month}"
                )
        return over

    def month(self) -> str:
        return datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m")


def _used(raw: Mapping[bytes, bytes]) -> Used:
    return Used(**{name.decode(): float(value) for name, value in raw.items()})


def _reached(used: float, most: float | None) -> bool:
    return most is not None and used >= most


def _check(limits: Limits) -> None:
    if not 0 < limits.weight < math.inf:
        raise UserError(f"a weight is above 0, got {limits.weight:g}", param="weight")
    for name in ("max_jobs", "max_instances", "max_function_seconds", "max_usd"):
        value = getattr(limits, name)
        if value is not None and not 0 <= value < math.inf:
            raise UserError(f"{name} cannot be {value:g}", param=name, hint="give 0 or more")


def _usage_key(tenant: str, month: str) -> str:
    return f"rlhfless:tenant:{tenant}:usage:{month}"


def _booked_key(job: str) -> str:
    return f"rlhfless:{{{job}}}:booked"
