"""``/docs``: the API's document to read and to try, from files of ours alone (Swagger UI)."""

from __future__ import annotations

import importlib.resources

from fastapi import APIRouter, Request
from fastapi.responses import Response

from controller.service.service import Service
from rlhfless.errors import NotFoundError

_ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
_HEADERS = {
    # Swagger UI writes styles into its elements and draws with data: images.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>rlhfless API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{root}/docs/swagger-ui.css">
<div id="api"></div>
<script src="{root}/docs/swagger-ui-bundle.js"></script>
<script src="{root}/docs/start.js"></script>
</html>
"""
# No validator: it would be asked of a server of Swagger's.
_START = """SwaggerUIBundle({
  url: new URL("../openapi.json", document.currentScript.src).href,
  dom_id: "#api",
  deepLinking: true,
  validatorUrl: null,
});
"""


def router(_: Service) -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get("/docs")
    async def docs(request: Request) -> Response:
        page = _PAGE.format(root=request.scope.get("root_path", ""))
        return Response(page, headers=_HEADERS, media_type="text/html")

    @routes.get("/docs/start.js")
    async def start() -> Response:
        return Response(_START, headers=_HEADERS, media_type="text/javascript")

    @routes.get("/docs/{name}")
    async def asset(name: str) -> Response:
        if name not in _ASSETS:
            raise NotFoundError(f"there is no {name[:80]!r} here")
        content = importlib.resources.files("fastapi_offline").joinpath("static", name).read_bytes()
        headers = {**_HEADERS, "Cache-Control": "max-age=86400"}
        return Response(content, headers=headers, media_type=_ASSETS[name])

    return routes
