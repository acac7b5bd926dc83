"""The dashboard: files that come with the package, and the headers that keep a browser strict.

The page holds no secret and needs no key; it asks for one and then uses the REST API like any other
client. Nothing is built: ``controller/service/page`` is served as it lies.
"""

from __future__ import annotations

import hashlib
import mimetypes
import os
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response

from controller.service.service import Service
from rlhfless.errors import NotFoundError

FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "page")

HEADERS = {
    # Scripts and styles come from files of ours alone, and none can make markup out of text.
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Checked with every load: a browser never mixes the files of two releases.
    "Cache-Control": "no-cache",
}
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


@dataclass(frozen=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def router(_: Service) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    files = _read(FOLDER)

    @routes.get("/")
    async def index(request: Request) -> Response:
        return _answer(request, files["index.html"])

    @routes.get("/page/{name:path}")
    async def file(request: Request, name: str) -> Response:
        if name not in files:
            raise NotFoundError(f"the page has no file {name[:80]!r}")
        return _answer(request, files[name])

    return routes


def _answer(request: Request, file: _File) -> Response:
    headers = HEADERS | {"ETag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


def _read(folder: str) -> dict[str, _File]:
    """All files below ``folder``, by their names with slashes."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as opened:
                content = opened.read()
            ending = os.path.splitext(name)[1]
            guessed = _TYPES.get(ending) or mimetypes.guess_type(name)[0]
            found[os.path.relpath(path, folder).replace(os.sep, "/")] = _File(
                content=content,
                media_type=guessed or "application/octet-stream",
                etag=f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            )
    return found
