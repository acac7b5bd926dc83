"""A job's events: pages, or a stream of Server-Sent Events that ends with the job."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import Response

from controller.service.documents import event_document
from controller.service.events import check_cursor
from controller.service.keys import ApiKey
from controller.service.routes.common import After, Limit, Reader, server_sent
from controller.service.service import Service
from controller.service.states import FINAL
from rlhfless import rest
from rlhfless.errors import CapacityError, TransientError

RETRY_MS = 1000
"""When a reader of a broken event stream asks again."""
CHECK_KEY_S = 5.0
"""A revoked key's stream goes on for so long at most."""


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
            return server_sent(_stream(service, key, job, cursor))
        page = await service.events.read(job, cursor, limit)
        data = [event_document(event) for event in page.data]
        return rest.Page(data=data, has_more=page.has_more)

    return routes


async def _stream(service: Service, key: ApiKey, job: str, cursor: str) -> AsyncGenerator[str]:
    """Server-Sent Events, ending with the one that ends the job, or soon after the key was revoked
    or the replica was told to end; a comment when there is nothing to say, so that nobody on the
    way takes the stream for dead."""
    loop = asyncio.get_running_loop()
    yield f"retry: {RETRY_MS}\n\n"
    checked_s = loop.time()
    try:
        ended = (await service.registry.get(key.tenant, job)).state in FINAL
        with service.metrics.event_stream():
            async with contextlib.aclosing(service.fanout.follow(job, cursor)) as following:
                async for events in following:
                    for event in events:
                        data = event_document(event).model_dump_json()
                        yield f"id: {event.id}\nevent: {event.type}\ndata: {data}\n\n"
                        if event.type == "state" and event.data.get("state") in FINAL:
                            return
                    if service.closing:
                        return
                    if not events:
                        if ended:  # and what ended it was read before
                            return
                        yield ": still here\n\n"
                    if loop.time() - checked_s > CHECK_KEY_S:
                        checked_s = loop.time()
                        if not await service.keys.still_valid(key.id):
                            return
    except (TransientError, CapacityError):
        return  # the reader comes back, and goes on after the last event it has
