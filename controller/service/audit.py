"""The audit log: who changed or tried to change what, and whom the service refused.

    rlhfless:tenant:<t>:audit   stream  the tenant's entries (JSON)
    rlhfless:audit              stream  entries of nobody's: requests without a valid key

An entry holds no body, no query, no header and no secret; a path is kept, but what looks like a key
in it is not. Written before the answer is sent, so that what was answered is in the log; a Redis
that does not take the entry loses it (``controller.service.edge`` says so), never the answer.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

import msgspec
from redis.asyncio import Redis

from controller.redis_calls import answer
from controller.service.keys import PREFIX

KEEP = 20_000
"""About so many entries of a tenant are kept, the newest."""
MAX_TARGET_CHARS = 200
_KEY = re.compile(rf"{PREFIX}[^/]*", re.IGNORECASE)


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """``action``: method and route template; ``target``: the path; ``request``: its id, which the
    access log and the answer have, too."""

    id: str = ""
    tenant: str | None
    key: str | None
    action: str
    target: str
    status: int
    request: str

    @property
    def created_at(self) -> float:
        """Unix seconds, by Redis's clock."""
        return int(self.id.partition("-")[0]) / 1000


class AuditPage(msgspec.Struct, frozen=True):
    data: list[AuditEntry]
    has_more: bool


_decode = msgspec.json.Decoder(AuditEntry).decode
_encode = msgspec.json.encode


def masked(path: str) -> str:
    """A path as it may be kept: no key that somebody took for an id, and not without end."""
    return _KEY.sub(f"{PREFIX}***", path)[:MAX_TARGET_CHARS]


def is_audited(method: str, status: int, known: bool) -> bool:
    """Whether a request goes into the log. ``known``: it came with a valid key. Strangers who ask
    for what is not there, or ask too often, are left out, or any scanner would write the log."""
    if status in (401, 403):
        return True
    if status == 404:
        return known
    return known and method not in ("GET", "HEAD", "OPTIONS")


class Audit:
    """The log of all tenants. Raises as ``controller.redis_calls.answer`` does."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def write(self, entry: AuditEntry) -> None:
        """Append an entry; its ``id`` is given by Redis."""
        await answer(
            self._redis.xadd(
                _stream(entry.tenant), {"entry": _encode(entry)}, maxlen=KEEP, approximate=True
            )
        )

    async def read(self, tenant: str | None, after: str | None, limit: int) -> AuditPage:
        """A tenant's entries (None: those of nobody's), newest first, that are older than the entry
        ``after``, an id."""
        newest = "+" if after is None else f"({after}"
        found = await answer(self._redis.xrevrange(_stream(tenant), newest, "-", limit + 1))
        entries = [_with_id(id_, fields) for id_, fields in found]
        return AuditPage(entries[:limit], len(entries) > limit)


def new_request_id() -> str:
    return uuid.uuid4().hex


def _with_id(id_: bytes, fields: dict[bytes, Any]) -> AuditEntry:
    return msgspec.structs.replace(_decode(fields[b"entry"]), id=id_.decode())


def _stream(tenant: str | None) -> str:
    return "rlhfless:audit" if tenant is None else f"rlhfless:tenant:{tenant}:audit"
