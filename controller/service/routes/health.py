"""Whether a replica lives, and whether it can serve. Needs no key."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import Response

from controller.redis_calls import answer
from controller.service.service import Service
from rlhfless.errors import RlhflessError

READY_WITHIN_S = 1.0
"""Whoever balances requests asks often, and does not wait long."""


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", response_class=Response)
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    @routes.get("/readyz", response_class=Response)
    async def readyz() -> Response:
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                await answer(service.redis.ping())
        except (RlhflessError, TimeoutError):
            return Response("the job store cannot be reached\n", 503, media_type="text/plain")
        return Response("ready\n", media_type="text/plain")

    return routes
