"""Jobs: submit, list, look at, cancel, pause, resume, delete."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from controller.service.documents import job_document, job_documents, new_document
from controller.service.http import read_model
from controller.service.records import JobRecord
from controller.service.removal import remove
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
from rlhfless.spec import JobSpec
from rlhfless.spec_file import user_error
from rlhfless.spec_secrets import split


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"])
    registry = service.registry

    @routes.post("", status_code=201, response_model=rest.Job, openapi_extra=JOB_BODY)
    async def submit(
        request: Request, key: Submitter, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Submit a job. The body is a job spec, as JSON or as a job file (YAML)."""
        spec = await read_job(request, service.settings.max_body_bytes)
        await service.references.check(spec, key.tenant)
        values, secrets = split(spec)
        made = await registry.create(key.tenant, _storable(values), idempotency_key, secrets)
        service.changed()
        document = new_document(made).model_dump(mode="json")
        return JSONResponse(document, 201, {"Location": f"/v1/jobs/{made.id}"})

    @routes.get("")
    async def jobs(key: Reader, after: After = None, limit: Limit = 20) -> rest.Page[rest.Job]:
        """The tenant's jobs, newest first."""
        page = await registry.listed(key.tenant, after, limit)
        return rest.Page(data=await job_documents(service, page.data), has_more=page.has_more)

    @routes.get("/{job}")
    async def one(job: str, key: Reader) -> rest.Job:
        return await job_document(service, await registry.get(key.tenant, job))

    @routes.delete("/{job}")
    async def delete(job: str, key: Submitter) -> rest.Job:
        """Delete a job that has ended, with all it left; what it was is the answer."""
        return await job_document(service, await remove(service.redis, key.tenant, job))

    @routes.post("/{job}/cancel", response_model=rest.Job)
    async def cancel(
        request: Request, job: str, key: Submitter, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """End a job at once. What its committed steps have left stays."""

        async def work() -> Response:
            return await answer(await registry.move(key.tenant, job, "cancelled", "by its owner"))

        return await service.once(key.tenant, idempotency_key, asked(request), work)

    @routes.post("/{job}/pause", response_model=rest.Job)
    async def pause(
        request: Request, job: str, key: Submitter, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Stop a job after its open step; it holds no instances then."""

        async def work() -> Response:
            return await answer(await registry.pause(key.tenant, job, "by its owner"))

        return await service.once(key.tenant, idempotency_key, asked(request), work)

    @routes.post("/{job}/resume", response_model=rest.Job, openapi_extra=_CHANGE_BODY)
    async def resume(
        request: Request, job: str, key: Submitter, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Let a paused job go on, with another budget if the body says so."""
        max_bytes = service.settings.max_body_bytes
        change = await read_model(request, max_bytes, rest.JobChange, "the change", optional=True)

        async def work() -> Response:
            changed = partial(_changed, change.budget)
            return await answer(await registry.resume(key.tenant, job, changed))

        what = asked(request, change.model_dump_json().encode())
        return await service.once(key.tenant, idempotency_key, what, work)

    async def answer(record: JobRecord) -> Response:
        service.changed()
        return answered(await job_document(service, record))

    return routes


def _changed(budget: dict[str, Any] | None, spec: dict[str, Any]) -> dict[str, Any]:
    """The job spec with parts of its budget replaced. Raises ``UserError``."""
    if budget is None:
        return spec
    changed = spec | {"budget": spec.get("budget", {}) | budget}
    try:
        return _storable(JobSpec.model_validate(changed).model_dump(mode="json"))
    except ValidationError as error:
        raise user_error(error, JobSpec, "the job") from error


async def read_job(request: Request, max_bytes: int) -> JobSpec:
    """The job spec that a body is. Raises ``UserError`` naming its fields."""
    return await read_model(request, max_bytes, JobSpec, "the job")


def _storable(values: dict[str, Any]) -> dict[str, Any]:
    """JSON values as they are. Raises ``UserError`` for numbers that would not survive."""
    try:
        kept = msgspec.json.decode(msgspec.json.encode(values))
    except (msgspec.MsgspecError, OverflowError, ValueError):
        kept = None
    if kept != values:
        raise UserError("the job holds a number that is infinite or too large to be stored")
    return values


_CHANGE_BODY: dict[str, Any] = {
    "requestBody": {"content": {"application/json": {"schema": rest.JobChange.model_json_schema()}}}
}
JOB_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            media_type: {"schema": {"$ref": "#/components/schemas/JobSpec"}}
            for media_type in ("application/json", "application/yaml")
        },
    }
}
