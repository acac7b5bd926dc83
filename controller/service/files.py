"""Files that tenants upload: content in the object store, the rest in Redis.

    files/{tenant}/{id}                    object  the content
    rlhfless:tenant:<t>:file:<id>          string  the file's record (JSON)
    rlhfless:tenant:<t>:files              sorted  ids of the tenant's files, by id
    rlhfless:tenant:<t>:files:same:<...>   string  the id of the file with this content and name
    rlhfless:tenant:<t>:files:bytes        string  of all of them

A file is recorded after its content is whole, and forgotten before its content goes; what a crash
leaves in between is swept up. The same content under the same name and purpose is one file, however
often it is sent. An id begins with the time of its creation, so ids sort by age.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from redis.asyncio import Redis

from controller.redis_calls import answer
from controller.service.draft import Draft
from controller.service.names import check_tenant
from controller.service.references import FILE_ID, file_ids
from controller.service.refusals import TooLargeError
from controller.service.registry import Registry
from rlhfless.errors import ConflictError, NotFoundError, UserError
from rlhfless.objects import ObjectStore
from rlhfless.rest import Purpose

MAX_NAME_CHARS = 200
READ_BYTES = 1 << 20
"""Of a content, at once."""
LISTED = 1_000
"""Records read at once."""
ORPHANED_AFTER_S = 24 * 3600


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    filename: str
    purpose: Purpose
    num_bytes: int
    sha256: str
    created_at: float

    @property
    def object_name(self) -> str:
        return f"files/{self.tenant}/{self.id}"


class FilePage(msgspec.Struct, frozen=True):
    data: list[FileRecord]
    has_more: bool


_decode = msgspec.json.Decoder(FileRecord).decode
_encode = msgspec.json.encode


class Files:
    """All tenants' files; another's file is answered as if it were not there. Raises as
    ``controller.redis_calls.answer`` and ``ObjectStore`` do."""

    def __init__(
        self,
        redis: Redis,
        objects: ObjectStore,
        registry: Registry,
        max_tenant_bytes: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._redis = redis
        self._objects = objects
        self._registry = registry
        self._max_tenant_bytes = max_tenant_bytes
        self._now = now

    async def add(self, tenant: str, draft: Draft, purpose: Purpose, filename: str) -> FileRecord:
        """Keep a draft; if the tenant has that very file already, that one. Raises
        ``TooLargeError`` if it has too much."""
        at = self._now()
        record = FileRecord(
            id=f"file-{int(at * 1000):012x}{secrets.token_hex(6)}",
            tenant=check_tenant(tenant),
            filename=clean_name(filename),
            purpose=purpose,
            num_bytes=draft.num_bytes,
            sha256=draft.sha256,
            created_at=at,
        )
        if (same := await self._same(record)) is not None:
            return same
        name = record.object_name
        await asyncio.to_thread(self._objects.put_file, name, draft.path, durable=True)
        try:
            kept = await self._record(record)
        except UserError:
            await asyncio.to_thread(self._objects.delete, name)
            raise
        if kept.id != record.id:  # another upload of it was faster
            await asyncio.to_thread(self._objects.delete, name)
        return kept

    async def get(self, tenant: str, id_: str, param: str | None = None) -> FileRecord:
        """Raises ``NotFoundError``, naming the field ``param``."""
        raw = None
        if FILE_ID.fullmatch(id_):
            raw = await answer(self._redis.get(_file_key(tenant, id_)))
        if raw is None:
            raise NotFoundError(f"there is no file {id_[:80]!r}", param=param)
        return _decode(raw)

    async def listed(self, tenant: str, after: str | None = None, limit: int = 20) -> FilePage:
        """The tenant's files, newest first, beginning after the file ``after``. Raises
        ``NotFoundError`` for an ``after`` that is no file's id."""
        if after is not None and not FILE_ID.fullmatch(after):
            raise NotFoundError(f"there is no file {after[:80]!r}", param="after")
        start = "+" if after is None else f"({after}"
        found = self._redis.zrevrangebylex(_files_key(tenant), start, "-", 0, limit + 1)
        ids = [id_.decode() for id_ in await answer(found)]
        raw: list[bytes | None] = []
        if ids:
            keys = [_file_key(tenant, id_) for id_ in ids[:limit]]
            raw = await answer(self._redis.mget(keys))
        return FilePage([_decode(each) for each in raw if each is not None], len(ids) > limit)

    async def of_purpose(self, tenant: str, purpose: Purpose) -> list[FileRecord]:
        """All of the tenant's files of a purpose, newest first."""
        found: list[FileRecord] = []
        page = await self.listed(tenant, limit=LISTED)
        while True:
            found += [file for file in page.data if file.purpose == purpose]
            if not page.has_more or not page.data:
                return found
            page = await self.listed(tenant, page.data[-1].id, LISTED)

    async def read(self, record: FileRecord) -> AsyncGenerator[bytes, None]:
        """The content, piece by piece. Raises ``NotFoundError`` if it was deleted meanwhile."""
        for start in range(0, record.num_bytes, READ_BYTES):
            end = min(start + READ_BYTES, record.num_bytes)
            try:
                yield await asyncio.to_thread(
                    self._objects.get_range, record.object_name, start, end
                )
            except FileNotFoundError as error:
                raise NotFoundError(f"the file {record.id} is no longer there") from error

    async def delete(self, tenant: str, id_: str) -> FileRecord:
        """Forget a file and remove its content. Raises ``NotFoundError``, and ``ConflictError``
        while a job that has not ended names it."""
        record = await self.get(tenant, id_)
        for job in await self._registry.open_jobs(tenant):
            if id_ in file_ids(job.spec) | await self._pinned(job.id):
                raise ConflictError(
                    f"the file {id_} is used by the job {job.id}, which has not ended",
                    hint="delete it when the job has ended, or cancel the job",
                )
        file, same = _file_key(tenant, id_), _same_key(record)

        async def plan(pipe: Any) -> None:
            if await pipe.get(file) is None:
                return  # another request was faster
            of_this = await pipe.get(same) == id_.encode()
            pipe.multi()
            pipe.delete(file, *([same] if of_this else []))
            pipe.zrem(_files_key(tenant), id_)
            pipe.decrby(_bytes_key(tenant), record.num_bytes)

        await answer(self._redis.transaction(plan, file, same))
        await asyncio.to_thread(self._objects.delete, record.object_name)
        return record

    async def pinned(self, job: str, param: str) -> str | None:
        """The file that was fetched for a field of a job, if any was."""
        found = await answer(self._redis.hget(_inputs_key(job), param))
        return None if found is None else str(found.decode())

    async def pin(self, job: str, param: str, id_: str) -> str:
        """Note which file was fetched for a field of a job; the first note stays, and is
        answered."""
        key = _inputs_key(job)
        await answer(self._redis.hsetnx(key, param, id_))
        return str((await answer(self._redis.hget(key, param))).decode())

    async def sweep(self) -> int:
        """Remove contents that no record tells of and that are not being written; how many. For
        whoever tidies up once in a while."""
        infos = await asyncio.to_thread(self._objects.infos, "files")
        removed = 0
        for info in infos:
            _, tenant, id_ = info.name.split("/")
            young = info.used_s > self._now() - ORPHANED_AFTER_S
            if young or await answer(self._redis.exists(_file_key(tenant, id_))):
                continue
            await asyncio.to_thread(self._objects.delete, info.name)
            removed += 1
        return removed

    async def _pinned(self, job: str) -> set[str]:
        return {id_.decode() for id_ in await answer(self._redis.hvals(_inputs_key(job)))}

    async def _same(self, record: FileRecord) -> FileRecord | None:
        id_ = await answer(self._redis.get(_same_key(record)))
        raw = None
        if id_ is not None:
            raw = await answer(self._redis.get(_file_key(record.tenant, id_.decode())))
        return None if raw is None else _decode(raw)

    async def _record(self, record: FileRecord) -> FileRecord:
        tenant, same = record.tenant, _same_key(record)

        async def plan(pipe: Any) -> FileRecord:
            # Also found here if an earlier attempt recorded it, and only its answer was lost.
            if (id_ := await pipe.get(same)) is not None:
                raw = await pipe.get(_file_key(tenant, id_.decode()))
                if raw is not None:
                    return _decode(raw)
            held = int(await pipe.get(_bytes_key(tenant)) or 0)
            if held + record.num_bytes > self._max_tenant_bytes:
                raise TooLargeError(
                    f"your files have {held:,} bytes and may have {self._max_tenant_bytes:,}",
                    param="file",
                    hint="delete files that you no longer need",
                )
            pipe.multi()
            pipe.set(_file_key(tenant, record.id), _encode(record))
            pipe.set(same, record.id)
            pipe.zadd(_files_key(tenant), {record.id: 0})
            pipe.incrby(_bytes_key(tenant), record.num_bytes)
            return record

        keys = (same, _bytes_key(tenant))
        kept = await answer(self._redis.transaction(plan, *keys, value_from_callable=True))
        assert isinstance(kept, FileRecord)
        return kept


def clean_name(name: str) -> str:
    """A file's name as a label: without folders and what does not print."""
    base = name.replace("\\", "/").rsplit("/", 1)[-1]
    shown = "".join(each for each in base if each.isprintable()).strip()[-MAX_NAME_CHARS:]
    return shown if shown.strip(". ") else "file"


def name_in(url: str) -> str:
    """What the file at a URL is called."""
    return unquote(urlsplit(url).path).rsplit("/", 1)[-1]


def _file_key(tenant: str, id_: str) -> str:
    return f"rlhfless:tenant:{tenant}:file:{id_}"


def _files_key(tenant: str) -> str:
    return f"rlhfless:tenant:{tenant}:files"


def _bytes_key(tenant: str) -> str:
    return f"rlhfless:tenant:{tenant}:files:bytes"


def _same_key(record: FileRecord) -> str:
    told = json.dumps([record.sha256, record.purpose, record.filename])
    digest = hashlib.sha256(told.encode()).hexdigest()
    return f"rlhfless:tenant:{record.tenant}:files:same:{digest}"


def _inputs_key(job: str) -> str:
    return f"rlhfless:{{{job}}}:inputs"
