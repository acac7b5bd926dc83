"""The replica's numbers for Prometheus. Needs no key, and names no tenant."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from controller.service.metrics import CONTENT_TYPE
from controller.service.service import Service


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get("/metrics", response_class=Response, responses=_TEXT)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    return routes


_TEXT: dict[int | str, dict[str, object]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}
