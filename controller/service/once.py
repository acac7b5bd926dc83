"""Idempotency keys: a request that is repeated with the same key is answered as the first was.

    rlhfless:tenant:<t>:answered:<key>  string  what the key was used for, and the answer (JSON)

While the first request is worked on, the record is a claim that expires shortly after whoever made
it stops renewing it; a crash in the middle therefore delays a repeat by ``CLAIM_S`` at most, and
the repeat then does the work again. A request that was refused leaves nothing: it may be corrected
and sent with the same key. An answer that holds a secret is not kept; its repeat is refused with
what to do.

``POST /v1/jobs`` needs none of this: its key is part of the job's own transaction
(``controller.service.registry``).
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from fastapi.responses import Response
from redis.asyncio import Redis

from controller.redis_calls import answer
from controller.service.refusals import StillWorkingError
from controller.service.registry import MAX_KEY_CHARS, ONCE_FOR_S
from rlhfless.errors import ConflictError, RlhflessError, UserError

CLAIM_S = 10.0
RENEWALS_A_CLAIM = 4
WAIT_S = 5.0
"""So long a repeat waits for the first request's answer before it is sent away."""
POLL_S = 0.05

Work = Callable[[], Awaitable[Response]]


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """``holder`` works on it; None: there is an answer. ``body`` None: it held a secret."""

    sha256: str
    holder: str | None = None
    status: int = 0
    media_type: str | None = None
    location: str | None = None
    body: str | None = None


_decode = msgspec.json.Decoder(_Record).decode
_encode = msgspec.json.encode


class Once:
    """All idempotency keys but those of jobs. Raises as ``controller.redis_calls.answer`` does."""

    def __init__(self, redis: Redis, claim_s: float = CLAIM_S, wait_s: float = WAIT_S) -> None:
        self._redis = redis
        self._claim_s = claim_s
        self._wait_s = wait_s

    async def __call__(
        self,
        tenant: str,
        key: str | None,
        asked: tuple[str, bytes],
        work: Work,
        *,
        secret: bool = False,
    ) -> Response:
        """The answer of ``work``, which is done once for a ``key`` (None: each time). ``asked`` is
        what a repeat must ask for, too: the method and path, and the body or a digest of it.
        ``secret``: the answer holds one.

        Raises ``UserError`` for what cannot be a key, ``ConflictError`` for one that was used for
        something else or whose answer held a secret, ``StillWorkingError`` if the first request
        goes on for long, and what ``work`` raises.
        """
        if key is None:
            return await work()
        name = _name(tenant, key)
        digest = hashlib.sha256(asked[0].encode() + b"\0" + asked[1]).hexdigest()
        holder = uuid.uuid4().hex
        give_up_s = asyncio.get_running_loop().time() + self._wait_s
        while (found := await self._claim(name, digest, holder)) is not None:
            if found.sha256 != digest:
                raise ConflictError(
                    "this idempotency key was used for another request",
                    param="Idempotency-Key",
                    hint="use a new key for a new request",
                )
            if found.holder is None:
                return _answer(found)
            if asyncio.get_running_loop().time() >= give_up_s:
                raise StillWorkingError(
                    "the first request with this idempotency key is still worked on",
                    param="Idempotency-Key",
                    hint="ask again in a moment",
                )
            await asyncio.sleep(POLL_S)
        return await self._work(name, _Record(sha256=digest, holder=holder), work, secret)

    async def _work(self, name: str, claim: _Record, work: Work, secret: bool) -> Response:
        renewing = asyncio.create_task(self._renewing(name, claim))
        try:
            response = await work()
        except Exception:
            # What went wrong matters more than that the claim is still there: it expires.
            with suppress(RlhflessError):
                await self._replace(name, claim, None)
            raise
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})
        kept = _Record(
            sha256=claim.sha256,
            status=response.status_code,
            media_type=response.media_type,
            location=response.headers.get("location"),
            body=None if secret else bytes(response.body).decode(),
        )
        await self._replace(name, claim, kept)
        return response

    async def _claim(self, name: str, digest: str, holder: str) -> _Record | None:
        """Claims the key; what is known of it if it is not free."""

        async def plan(pipe: Any) -> _Record | None:
            raw = await pipe.get(name)
            if raw is not None:
                found = _decode(raw)
                # Ours: an earlier attempt did it, and only its answer was lost.
                return None if found.holder == holder else found
            pipe.multi()
            claim = _encode(_Record(sha256=digest, holder=holder))
            pipe.set(name, claim, px=round(self._claim_s * 1000))
            return None

        found = await answer(self._redis.transaction(plan, name, value_from_callable=True))
        assert found is None or isinstance(found, _Record)
        return found

    async def _replace(self, name: str, claim: _Record, record: _Record | None) -> None:
        """Another record for the claim's, or none; unless somebody else has the key by now."""

        async def plan(pipe: Any) -> None:
            raw = await pipe.get(name)
            if raw is not None and _decode(raw).holder != claim.holder:
                return
            pipe.multi()
            if record is None:
                pipe.delete(name)
            else:
                kept_s = ONCE_FOR_S if record.holder is None else self._claim_s
                pipe.set(name, _encode(record), px=round(kept_s * 1000))

        await answer(self._redis.transaction(plan, name))

    async def _renewing(self, name: str, claim: _Record) -> None:
        while True:
            await asyncio.sleep(self._claim_s / RENEWALS_A_CLAIM)
            with suppress(RlhflessError):  # another attempt comes soon enough
                await self._replace(name, claim, claim)


def _answer(record: _Record) -> Response:
    if record.body is None:
        raise ConflictError(
            "the first request with this idempotency key was answered with a secret, which is "
            "shown once and was not kept",
            param="Idempotency-Key",
            hint="if you did not get the answer, revoke what it made and ask with a new "
            f"idempotency key{'' if record.location is None else f'; it made {record.location}'}",
        )
    headers = {} if record.location is None else {"Location": record.location}
    return Response(record.body, record.status, headers, record.media_type)


def _name(tenant: str, key: str) -> str:
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise UserError(
            f"an idempotency key has 1 to {MAX_KEY_CHARS} characters", param="Idempotency-Key"
        )
    return f"rlhfless:tenant:{tenant}:answered:{hashlib.sha256(key.encode()).hexdigest()}"
