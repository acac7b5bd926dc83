"""Files: upload (or have fetched), list, look at, download, delete."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple, get_args
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict

from controller.service.draft import Draft
from controller.service.fetch import fetch
from controller.service.files import FileRecord, name_in
from controller.service.gate import Gate
from controller.service.http import read_model
from controller.service.multipart import read_form
from controller.service.routes.common import (
    After,
    IdempotencyKey,
    Limit,
    Reader,
    Submitter,
    answered,
    asked,
)
from controller.service.service import Service
from rlhfless import rest
from rlhfless.errors import UserError

MAX_UPLOADS = 16
"""Coming in at once on this replica, each perhaps of ``Settings.max_file_bytes``."""


class FromUrl(BaseModel):
    """A file that the service is to fetch. ``filename``: default, the last part of the URL."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    url: str
    purpose: rest.Purpose
    filename: str | None = None


class _Wanted(NamedTuple):
    """``url`` None: the file came with the request."""

    purpose: rest.Purpose
    filename: str
    url: str | None


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/files", tags=["files"])
    files, settings = service.files, service.settings
    uploads = Gate("uploads", MAX_UPLOADS)

    @routes.post("", status_code=201, response_model=rest.File, openapi_extra=_BODY)
    async def upload(
        request: Request, key: Submitter, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Upload a file (multipart/form-data with ``file`` and ``purpose``), or have one fetched
        from a URL (JSON). The same file again is answered with the first."""
        with (
            uploads.passed(),
            Draft(settings.file("uploads"), settings.max_file_bytes) as draft,
        ):
            wanted = await _read(request, draft, settings.max_body_bytes)

            async def work() -> Response:
                if wanted.url is not None:
                    await fetch(
                        wanted.url,
                        draft.write,
                        param="url",
                        max_bytes=draft.max_bytes,
                        allowed=settings.allowed_urls,
                    )
                file = await files.add(key.tenant, draft, wanted.purpose, wanted.filename)
                return answered(file_document(file), 201, f"/v1/files/{file.id}")

            told = json.dumps([*wanted, None if wanted.url else draft.sha256]).encode()
            return await service.once(key.tenant, idempotency_key, asked(request, told), work)

    @routes.get("")
    async def listed(key: Reader, after: After = None, limit: Limit = 20) -> rest.Page[rest.File]:
        """The tenant's files, newest first."""
        page = await files.listed(key.tenant, after, limit)
        return rest.Page(data=[file_document(file) for file in page.data], has_more=page.has_more)

    @routes.get("/{file}")
    async def one(file: str, key: Reader) -> rest.File:
        return file_document(await files.get(key.tenant, file))

    @routes.get("/{file}/content", response_class=Response, responses=_CONTENT)
    async def content(file: str, key: Reader) -> Response:
        record = await files.get(key.tenant, file)
        pieces = files.read(record)
        # The first piece is read before the answer begins: what is gone is answered as that.
        first = await anext(pieces, b"")
        headers = {
            "Content-Length": str(record.num_bytes),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(record.filename)}",
            "ETag": f'"{record.sha256}"',
            "X-Content-Type-Options": "nosniff",
        }
        media = "application/octet-stream"
        return StreamingResponse(_whole(first, pieces), 200, headers, media_type=media)

    @routes.delete("/{file}")
    async def delete(file: str, key: Submitter) -> rest.File:
        """Delete a file that no unfinished job names; what it was is the answer."""
        return file_document(await files.delete(key.tenant, file))

    return routes


def file_document(record: FileRecord) -> rest.File:
    return rest.File(
        id=record.id,
        created_at=record.created_at,
        filename=record.filename,
        purpose=record.purpose,
        bytes=record.num_bytes,
        sha256=record.sha256,
    )


async def _read(request: Request, draft: Draft, max_body_bytes: int) -> _Wanted:
    """What the request asks for; the file that it holds is in the draft then."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        given = await read_model(request, max_body_bytes, FromUrl, "the file")
        return _Wanted(given.purpose, given.filename or name_in(given.url), given.url)
    if kind != "multipart/form-data":
        raise UserError(
            f"a file cannot come as {kind[:80] or 'nothing'!r}",
            hint="send multipart/form-data with file and purpose, or JSON with a url",
        )
    form = await read_form(request, draft.write)
    if form.filename is None:
        raise UserError("the upload has no part 'file'", param="file")
    unknown = form.fields.keys() - {"purpose"}
    if unknown:
        name = min(unknown)[:80]
        raise UserError(f"the upload has a part {name!r}", param=name, hint="file and purpose")
    return _Wanted(_purpose(form.fields.get("purpose")), form.filename, None)


def _purpose(given: str | None) -> rest.Purpose:
    for purpose in get_args(rest.Purpose):
        if given == purpose:
            found: rest.Purpose = purpose
            return found
    raise UserError(
        "the upload has no part 'purpose'" if given is None else f"no purpose: {given[:80]!r}",
        param="purpose",
        hint=f"one of {', '.join(get_args(rest.Purpose))}",
    )


async def _whole(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield first
    async for piece in pieces:
        yield piece


_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"enum": list(get_args(rest.Purpose))},
                    },
                }
            },
            "application/json": {"schema": FromUrl.model_json_schema()},
        },
    }
}
