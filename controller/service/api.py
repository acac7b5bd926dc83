"""The REST API of jobs, as an ASGI app over the parts of the service.

Shapes follow OpenAI's fine-tuning jobs: pages are ``{data, has_more}`` and go on ``after`` an id.
Each route but the health checks needs a key; what a key sees is its tenant's. It keeps nothing
between requests, so any number of replicas serve the same jobs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Header, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import ValidationError
from redis.asyncio import Redis

from controller.redis_calls import answer
from controller.service.events import Events, JobEvent, check_cursor
from controller.service.http import MAX_BODY_BYTES, Needs, answer_with_problems, read_object
from controller.service.keys import ApiKey, ApiKeys
from controller.service.registry import JobRecord, Registry
from controller.service.states import FINAL
from rlhfless.errors import CapacityError, RlhflessError, TransientError, UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_file import user_error

Reader = Annotated[ApiKey, Depends(Needs("read"))]
Submitter = Annotated[ApiKey, Depends(Needs("submit"))]
Limit = Annotated[int, Query(ge=1, le=100)]

RETRY_MS = 1000
"""When a reader of a broken event stream asks again."""


def create_app(redis: Redis, *, max_body_bytes: int = MAX_BODY_BYTES) -> FastAPI:
    """``redis``: open for as long as the app serves. Each open event stream occupies one of its
    connections."""
    app = FastAPI(title="rlhfless")
    app.state.keys = ApiKeys(redis)
    answer_with_problems(app)
    _add_health(app, redis)
    registry, events = Registry(redis), Events(redis)

    @app.post("/v1/jobs", status_code=201, openapi_extra=_JOB_BODY)
    async def submit(
        request: Request,
        key: Submitter,
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> Response:
        body = await read_object(request, max_body_bytes)
        try:
            spec = JobSpec.model_validate(body)
        except ValidationError as error:
            raise user_error(error, JobSpec, "the job") from error
        made = await registry.create(key.tenant, _storable(spec), idempotency_key)
        return JSONResponse(_job(made), 201, {"Location": f"/v1/jobs/{made.id}"})

    @app.get("/v1/jobs")
    async def jobs(key: Reader, after: str | None = None, limit: Limit = 20) -> dict[str, Any]:
        page = await registry.listed(key.tenant, after, limit)
        return {"data": [_job(job) for job in page.data], "has_more": page.has_more}

    @app.get("/v1/jobs/{job}")
    async def one(job: str, key: Reader) -> dict[str, Any]:
        return _job(await registry.get(key.tenant, job))

    @app.post("/v1/jobs/{job}/cancel")
    async def cancel(job: str, key: Submitter) -> dict[str, Any]:
        return _job(await registry.move(key.tenant, job, "cancelled", "by its owner"))

    @app.get("/v1/jobs/{job}/events", response_model=None)
    async def job_events(
        job: str,
        key: Reader,
        accept: Annotated[str, Header()] = "",
        after: str | None = None,
        last_event_id: Annotated[str | None, Header()] = None,
        limit: Limit = 20,
    ) -> dict[str, Any] | Response:
        """A page, or with ``Accept: text/event-stream`` every event until the job has ended."""
        await registry.get(key.tenant, job)
        cursor = check_cursor(last_event_id or after)
        if "text/event-stream" in accept:
            stream = _stream(registry, events, key.tenant, job, cursor)
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(stream, 200, headers, media_type="text/event-stream")
        page = await events.read(job, cursor, limit)
        return {"data": [_event(found) for found in page.data], "has_more": page.has_more}

    _describe_job_body(app)
    return app


async def _stream(
    registry: Registry, events: Events, tenant: str, job: str, cursor: str
) -> AsyncGenerator[str, None]:
    """Server-Sent Events, ending with the one that ends the job; a comment when there is nothing
    to say, so that nobody on the way takes the stream for dead."""
    yield f"retry: {RETRY_MS}\n\n"
    try:
        while True:
            # The order matters: what was said before the job had ended is in what is read after.
            ended = (await registry.get(tenant, job)).state in FINAL
            if ended:
                found = (await events.read(job, cursor)).data
            else:
                found = (await events.wait({job: cursor})).get(job, [])
            for event in found:
                cursor = event.id
                data = msgspec.json.encode(_event(event)).decode()
                yield f"id: {event.id}\nevent: {event.type}\ndata: {data}\n\n"
            if ended and not found:
                return
            if not found:
                yield ": still here\n\n"
    except (TransientError, CapacityError):
        return  # the reader comes back, and goes on after the last event it has


def _add_health(app: FastAPI, redis: Redis) -> None:
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    async def readyz() -> Response:
        try:
            await answer(redis.ping())
        except RlhflessError:
            return Response("the job store cannot be reached\n", 503, media_type="text/plain")
        return Response("ready\n", media_type="text/plain")

    app.add_api_route("/healthz", healthz)
    app.add_api_route("/readyz", readyz)


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


def _job(record: JobRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "rlhf.job",
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "state": record.state,
        "reason": record.reason,
        "states": {
            state: {"at": entry.at, "reason": entry.reason}
            for state, entry in record.entered.items()
        },
        "spec": record.spec,
    }


def _event(event: JobEvent) -> dict[str, Any]:
    return {
        "id": event.id,
        "object": "rlhf.job.event",
        "created_at": event.created_at,
        "type": event.type,
        "level": event.level,
        "message": event.message,
        "data": event.data,
    }


def _describe_job_body(app: FastAPI) -> None:
    """Put the job spec's schema where the body of ``POST /v1/jobs`` says it is."""
    job = JobSpec.model_json_schema(ref_template="#/components/schemas/{model}")
    parts = job.pop("$defs")
    document = app.openapi()  # made once; the app keeps it
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= parts | {"JobSpec": job}


_JOB_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobSpec"}}},
    }
}
