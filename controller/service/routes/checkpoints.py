"""Checkpoints: the models that a job made, as files that ``transformers`` loads."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Path
from fastapi.responses import Response, StreamingResponse

from controller.service.byte_range import RangeError, byte_range
from controller.service.http import problem
from controller.service.routes.common import After, Limit, Reader
from controller.service.routes.outputs import same
from controller.service.service import Service
from rlhfless import rest
from rlhfless.checkpoints import Checkpoint
from rlhfless.errors import NotFoundError, UserError

_log = logging.getLogger(__name__)
Step = Annotated[
    str, Path(pattern="^(latest|[0-9]{1,9})$", description="Steps done, or ``latest``.")
]
_FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The file."},
    206: {"content": {"application/octet-stream": {}}, "description": "A part of it."},
}


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/jobs/{job}/checkpoints", tags=["checkpoints"])
    registry, checkpoints = service.registry, service.checkpoints

    async def chosen(job: str, step: str) -> Checkpoint:
        return await (
            checkpoints.latest(job) if step == "latest" else checkpoints.get(job, int(step))
        )

    @routes.get("")
    async def listed(
        job: str, key: Reader, after: After = None, limit: Limit = 20
    ) -> rest.Page[rest.Checkpoint]:
        """The job's checkpoints, newest first."""
        await registry.get(key.tenant, job)
        steps = await checkpoints.steps(job)
        if after is not None:
            if not after.isascii() or not after.isdigit() or len(after) > 9:
                raise UserError(f"{after[:80]!r} is no checkpoint's id", param="after")
            steps = [step for step in steps if step < int(after)]
        data = []
        for step in steps[:limit]:
            try:
                data.append(checkpoint_document(job, await checkpoints.get(job, step)))
            except NotFoundError as error:  # the others can be had all the same
                _log.warning("job %s: %s", job, error.detail)
        return rest.Page(data=data, has_more=len(steps) > limit)

    @routes.get("/{step}")
    async def one(job: str, step: Step, key: Reader) -> rest.Checkpoint:
        await registry.get(key.tenant, job)
        return checkpoint_document(job, await chosen(job, step))

    @routes.get("/{step}/files/{name:path}", response_class=Response, responses=_FILE)
    async def file(
        job: str,
        step: Step,
        name: str,
        key: Reader,
        wanted: Annotated[str | None, Header(alias="range")] = None,
        if_range: Annotated[str | None, Header()] = None,
        if_none_match: Annotated[str | None, Header()] = None,
    ) -> Response:
        """A file, or with ``Range`` a part of it, so that a download that broke off can go on."""
        await registry.get(key.tenant, job)
        number = (await chosen(job, step)).step
        found = await checkpoints.file(job, number, name)
        etag = f'"{found.sha256}"'
        headers = {
            "ETag": etag,
            "Cache-Control": "private, no-cache",
            "Vary": "Authorization",
            "Accept-Ranges": "bytes",
        }
        if same(if_none_match, etag):
            return Response(status_code=304, headers=headers)
        try:
            part = byte_range(wanted if if_range in (None, etag) else None, found.size)
        except RangeError as error:
            return problem(error, {"Content-Range": f"bytes */{found.size}"})
        start, end = part or (0, found.size)
        if part is not None:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{found.size}"
        headers["Content-Length"] = str(end - start)
        headers["Content-Disposition"] = (
            f"attachment; filename*=UTF-8''{quote(os.path.basename(name))}"
        )
        content = checkpoints.content(job, number, found, start, end)
        # The first part before the answer begins: what cannot be read is told as a problem.
        first = await anext(content, b"")
        return StreamingResponse(
            _all(first, content),
            200 if part is None else 206,
            headers,
            media_type="application/octet-stream",
        )

    return routes


async def _all(first: bytes, others: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    try:
        yield first
        async for data in others:
            yield data
    finally:
        await others.aclose()


def checkpoint_document(job: str, found: Checkpoint) -> rest.Checkpoint:
    return rest.Checkpoint(
        id=str(found.step),
        created_at=found.created_at,
        job=job,
        step=found.step,
        version=found.version,
        final=found.final,
        reference=f"checkpoint:{job}/{found.step}",
        files=[
            rest.StoredFile(name=file.name, bytes=file.size, sha256=file.sha256)
            for file in found.files
        ],
        metrics=found.metrics,
    )
