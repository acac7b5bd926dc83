"""A job's log: pages, or a stream of Server-Sent Events that ends with the job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import Response

from controller.service.events import check_cursor
from controller.service.keys import ApiKey
from controller.service.routes.common import After, Limit, Reader, server_sent
from controller.service.routes.events import CHECK_KEY_S, RETRY_MS
from controller.service.service import Service
from controller.service.states import FINAL
from rlhfless import rest
from rlhfless.errors import RlhflessError

LOOK_S = 1.0
"""Lines come in batches, no more often."""
QUIET_LOOKS = 10
"""Looks without a line after which a comment shows that the stream is alive."""


def router(service: Service) -> APIRouter:
    routes = APIRouter(prefix="/v1/jobs/{job}", tags=["logs"])

    @routes.get("/logs", response_model=rest.Page[rest.LogLine])
    async def logs(
        job: str,
        key: Reader,
        accept: Annotated[str, Header()] = "",
        after: After = None,
        last_event_id: Annotated[str | None, Header()] = None,
        limit: Limit = 20,
    ) -> rest.Page[rest.LogLine] | Response:
        """A page, oldest lines first, or with ``Accept: text/event-stream`` every line until the
        job has ended."""
        await service.registry.get(key.tenant, job)
        cursor = check_cursor(last_event_id or after)
        if "text/event-stream" in accept:
            return server_sent(_stream(service, key, job, cursor))
        return await service.logs.read(job, cursor, limit)

    return routes


async def _stream(service: Service, key: ApiKey, job: str, cursor: str) -> AsyncGenerator[str]:
    """Server-Sent Events, ending when the job has and all is told, or soon after the key was
    revoked or the replica was told to end."""
    loop = asyncio.get_running_loop()
    yield f"retry: {RETRY_MS}\n\n"
    checked_s = loop.time()
    quiet = 0
    try:
        while True:
            # Before it is read: what was written last is in what is read after.
            ended = (await service.registry.get(key.tenant, job)).state in FINAL
            page = await service.logs.read(job, cursor)
            for line in page.data:
                cursor = line.id
                yield f"id: {line.id}\nevent: log\ndata: {line.model_dump_json()}\n\n"
            if page.has_more:
                continue
            if ended or service.closing:
                return
            quiet = 0 if page.data else quiet + 1
            if quiet >= QUIET_LOOKS:
                quiet = 0
                yield ": still here\n\n"
            if loop.time() - checked_s > CHECK_KEY_S:
                checked_s = loop.time()
                if not await service.keys.still_valid(key.id):
                    return
            await asyncio.sleep(LOOK_S)
    except RlhflessError:
        return  # the reader comes back, and is told why if that lasts
