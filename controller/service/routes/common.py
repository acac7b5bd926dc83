"""What the routes' parameters have in common."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from typing import Annotated

from fastapi import Depends, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from controller.service.http import Needs
from controller.service.keys import ApiKey
from rlhfless import rest

Reader = Annotated[ApiKey, Depends(Needs("read"))]
Submitter = Annotated[ApiKey, Depends(Needs("submit"))]
Admin = Annotated[ApiKey, Depends(Needs("admin"))]
Limit = Annotated[int, Query(ge=1, le=100, description="Entries on the page.")]
After = Annotated[str | None, Query(description="Go on after the entry of this id.")]
IdempotencyKey = Annotated[
    str | None,
    Header(description="The same key again gives the first answer and changes nothing."),
]


def asked(request: Request, body: bytes = b"") -> tuple[str, bytes]:
    """What a request with the same idempotency key must ask for, too (``Service.once``)."""
    return f"{request.method} {request.url.path}", body


def answered(
    document: rest.Document,
    status: int = 200,
    location: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A document as an answer that can be kept for a repeat."""
    where = {} if location is None else {"Location": location}
    body = document.model_dump_json().encode()
    return Response(body, status, {**where, **(headers or {})}, "application/json")


def server_sent(events: AsyncIterable[str]) -> StreamingResponse:
    """Server-Sent Events as an answer that nobody on the way keeps or holds back."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, 200, headers, media_type="text/event-stream")
