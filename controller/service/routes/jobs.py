"""Jobs: submit, list, look at, cancel, pause, resume."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from controller.service.documents import job_document
from controller.service.http import read_object
from controller.service.routes.common import After, IdempotencyKey, Limit, Reader, Submitter
from controller.service.service import Service
from rlhfless import rest
from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_file import user_error


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
        made = await registry.create(key.tenant, _storable(spec), idempotency_key)
        document = job_document(made).model_dump(mode="json")
        return JSONResponse(document, 201, {"Location": f"/v1/jobs/{made.id}"})

    @routes.get("")
    async def jobs(key: Reader, after: After = None, limit: Limit = 20) -> rest.Page[rest.Job]:
        """The tenant's jobs, newest first."""
        page = await registry.listed(key.tenant, after, limit)
        return rest.Page(data=[job_document(job) for job in page.data], has_more=page.has_more)

    @routes.get("/{job}")
    async def one(job: str, key: Reader) -> rest.Job:
        return job_document(await registry.get(key.tenant, job))

    @routes.post("/{job}/cancel")
    async def cancel(job: str, key: Submitter) -> rest.Job:
        """End a job at once. What its committed steps have left stays."""
        return job_document(await registry.move(key.tenant, job, "cancelled", "by its owner"))

    return routes


async def read_job(request: Request, max_bytes: int) -> JobSpec:
    """The job spec that a body is. Raises ``UserError`` naming its fields."""
    body = await read_object(request, max_bytes)
    try:
        return JobSpec.model_validate(body)
    except ValidationError as error:
        raise user_error(error, JobSpec, "the job") from error


def _storable(spec: JobSpec) -> dict[str, Any]:
    """The spec as JSON values. Raises ``UserError`` for numbers that would not survive."""
    values = spec.model_dump(mode="json")
    try:
        kept = msgspec.json.decode(msgspec.json.encode(values))
    except (msgspec.MsgspecError, OverflowError, ValueError):
        kept = None
    if kept != values:
        raise UserError("the job holds a number that is infinite or too large to be stored")
    return values


def describe_spec(app: FastAPI) -> None:
    """Put the job spec's schema where the body of ``POST /v1/jobs`` says it is."""
    job = JobSpec.model_json_schema(ref_template="#/components/schemas/{model}")
    parts = job.pop("$defs")
    document = app.openapi()  # made once; the app keeps it
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= parts | {"JobSpec": job}


JOB_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            media_type: {"schema": {"$ref": "#/components/schemas/JobSpec"}}
            for media_type in ("application/json", "application/yaml")
        },
    }
}
