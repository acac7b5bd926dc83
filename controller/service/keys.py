"""API keys: who asks, for which tenant, and what they may do.

A key reads ``rlk_<id>_<secret>``. The id finds its record; of the secret only the SHA-256 is kept,
which is enough because the secret is 256 random bits: there is nothing to guess that a slow hash
would protect. The key is shown once, when it is made.

    rlhfless:keys   hash   id -> record (JSON)

Scopes grow: ``read`` sees the tenant's jobs; ``submit`` also submits and steers them; ``admin``
also manages the tenant's keys.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec
from redis.asyncio import Redis

from controller.redis_calls import answer
from controller.service.names import check_label, check_tenant
from rlhfless.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnauthenticatedError,
    UserError,
)

Scope = Literal["read", "submit", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""In growing order: each includes those before it."""

PREFIX = "rlk_"
_ID_BYTES, _SECRET_BYTES = 8, 32
_KEYS = "rlhfless:keys"
_SHAPE = re.compile(rf"{PREFIX}([0-9a-f]{{{2 * _ID_BYTES}}})_([0-9a-f]{{{2 * _SECRET_BYTES}}})")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. ``created_at``, ``revoked_at``: Unix seconds; None: still valid."""

    id: str
    tenant: str
    name: str
    scope: Scope
    created_at: float
    revoked_at: float | None = None

    def require(self, scope: Scope) -> None:
        """Raises ``ForbiddenError`` if the key may not do what needs ``scope``."""
        if SCOPES.index(self.scope) < SCOPES.index(scope):
            raise ForbiddenError(
                f"this needs the scope {scope}, and the key {self.name!r} has {self.scope}",
                hint=f"ask an administrator for a key with the scope {scope}",
            )


class _Stored(msgspec.Struct, frozen=True):
    key: ApiKey
    sha256: str


_decode = msgspec.json.Decoder(_Stored).decode
_encode = msgspec.json.encode
_NOBODY = "0" * 64


class ApiKeys:
    """All keys of a service. Raises as ``controller.redis_calls.answer`` does."""

    def __init__(self, redis: Redis, now: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._now = now

    async def create(self, tenant: str, name: str, scope: Scope) -> tuple[ApiKey, str]:
        """A new key and its text, which nobody can find out again. Raises ``UserError`` for names
        that cannot be."""
        if scope not in SCOPES:
            raise UserError(f"a scope is one of {', '.join(SCOPES)}, got {scope!r}", param="scope")
        # Not seeded, for once: a key must be unpredictable.
        key = ApiKey(
            id=secrets.token_hex(_ID_BYTES),
            tenant=check_tenant(tenant),
            name=check_label(name),
            scope=scope,
            created_at=self._now(),
        )
        secret = secrets.token_hex(_SECRET_BYTES)
        stored = _encode(_Stored(key, _digest(secret)))
        await answer(self._redis.hset(_KEYS, key.id, stored))
        return key, f"{PREFIX}{key.id}_{secret}"

    async def authenticate(self, text: str) -> ApiKey:
        """Whose key this is. Raises ``UnauthenticatedError``, always in the same words, if it is
        malformed, unknown, wrong or revoked."""
        found = _SHAPE.fullmatch(text)
        id_, secret = found.groups() if found else ("", "")
        raw = await answer(self._redis.hget(_KEYS, id_))
        stored = _decode(raw) if raw is not None else None
        expected = stored.sha256 if stored is not None else _NOBODY
        right = hmac.compare_digest(_digest(secret), expected)
        if stored is None or not right or stored.key.revoked_at is not None:
            raise UnauthenticatedError(
                "the API key is not valid", hint="check the key, or ask for a new one"
            )
        return stored.key

    async def still_valid(self, id_: str) -> bool:
        """Whether a key that was valid is so now: what goes on for long asks again and again."""
        raw = await answer(self._redis.hget(_KEYS, id_))
        return raw is not None and _decode(raw).key.revoked_at is None

    async def find(self, id_: str) -> ApiKey:
        """Anybody's key. Raises ``NotFoundError``."""
        return _found(await answer(self._redis.hget(_KEYS, id_)), id_).key

    async def revoke(self, tenant: str, id_: str, *, keep_an_admin: bool = False) -> ApiKey:
        """End a key of the tenant's; from then on it authenticates nobody. Repeating is harmless.
        Raises ``NotFoundError``, and with ``keep_an_admin`` ``ConflictError`` for the tenant's last
        valid key with the scope admin."""

        async def plan(pipe: Any) -> ApiKey:
            stored = _found(await pipe.hget(_KEYS, id_), id_, tenant)
            key = stored.key
            if key.revoked_at is None:
                if keep_an_admin and key.scope == "admin":
                    _check_another(key, [_decode(raw).key for raw in await pipe.hvals(_KEYS)])
                key = msgspec.structs.replace(key, revoked_at=self._now())
                pipe.multi()
                pipe.hset(_KEYS, id_, _encode(_Stored(key, stored.sha256)))
            return key

        transaction = self._redis.transaction(plan, _KEYS, value_from_callable=True)
        revoked = await answer(transaction)
        assert isinstance(revoked, ApiKey)
        return revoked

    async def listed(self, tenant: str | None = None) -> list[ApiKey]:
        """The tenant's keys (None: everybody's), revoked ones too, oldest first."""
        raw = await answer(self._redis.hvals(_KEYS))
        keys = [_decode(stored).key for stored in raw]
        chosen = [key for key in keys if tenant in (None, key.tenant)]
        return sorted(chosen, key=lambda key: (key.created_at, key.id))


def _found(raw: bytes | None, id_: str, tenant: str | None = None) -> _Stored:
    stored = _decode(raw) if raw is not None else None
    if stored is None or tenant not in (None, stored.key.tenant):
        raise NotFoundError(f"there is no key {id_[:80]!r}")
    return stored


def _check_another(last: ApiKey, keys: list[ApiKey]) -> None:
    for key in keys:
        if (key.tenant, key.scope, key.revoked_at) == (last.tenant, "admin", None) and key != last:
            return
    raise ConflictError(
        "this is the last valid key with the scope admin: nobody could make another",
        hint="create another admin key first, or ask the operator of the service to revoke it",
    )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
