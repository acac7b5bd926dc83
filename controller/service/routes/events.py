"""A job's events: pages, or a stream of Server-Sent Events that ends with the job."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import Response, StreamingResponse

from controller.service.documents import event_document
from controller.service.events import check_cursor
from controller.service.routes.common import After, Limit, Reader
from controller.service.service import Service
from controller.service.states import FINAL
from rlhfless import rest
from rlhfless.errors import CapacityError, TransientError

RETRY_MS = 1000
"""When a reader of a broken event stream asks again."""


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/jobs/{job}", tags=["events"])

    @routes.get("/events", response_model=rest.Page[rest.Event])
    async def events(
        job: str,
        key: Reader,
        accept: Annotated[str, Header()] = "",
        after: After = None,
        last_event_id: Annotated[str | None, Header()] = None,
        limit: Limit = 20,
    ) -> rest.Page[rest.Event] | Response:
        """A page, or with ``Accept: text/event-stream`` every event until the job has ended."""
        await service.registry.get(key.tenant, job)
        cursor = check_cursor(last_event_id or after)
        if "text/event-stream" in accept:
            stream = _stream(service, key.tenant, job, cursor)
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(stream, 200, headers, media_type="text/event-stream")
        page = await service.events.read(job, cursor, limit)
        data = [event_document(event) for event in page.data]
        return rest.Page(data=data, has_more=page.has_more)

    return routes


async def _stream(
    service: Service, tenant: str, job: str, cursor: str
) -> AsyncGenerator[str, None]:
    """Server-Sent Events, ending with the one that ends the job; a comment when there is nothing
    to say, so that nobody on the way takes the stream for dead."""
    events, registry = service.events, service.registry
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
                data = event_document(event).model_dump_json()
                yield f"id: {event.id}\nevent: {event.type}\ndata: {data}\n\n"
            if ended and not found:
                return
            if not found:
                yield ": still here\n\n"
    except (TransientError, CapacityError):
        return  # the reader comes back, and goes on after the last event it has
