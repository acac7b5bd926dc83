"""No request body is larger than it may be, whoever reads it and however it is sent."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.service.http import problem
from controller.service.refusals import TooLargeError


class BodyTooLarge(HTTPException):
    """Raised in whoever reads the body; of all errors, frameworks let this family through."""

    def __init__(self, most: int) -> None:
        super().__init__(413, f"a request body may have {most} bytes")


class BodyLimit:
    """``most`` bytes a body may have, or as many as ``by_path`` says for its path."""

    def __init__(self, most: int, by_path: Mapping[str, int] | None = None) -> None:
        self._most = most
        self._by_path = by_path or {}

    async def __call__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        most = self._by_path.get(scope["path"], self._most)
        if _announced(scope) > most:
            error = TooLargeError(f"a request body may have {most} bytes")
            await problem(error)(scope, receive, send)
            return
        got = 0

        async def receive_bounded() -> Message:
            nonlocal got
            message = await receive()
            if message["type"] == "http.request":
                got += len(message.get("body", b""))
                if got > most:
                    raise BodyTooLarge(most)
            return message

        await app(scope, receive_bounded, send)


def _announced(scope: Scope) -> int:
    """The content length; 0 if none is given that is a number: then what comes is counted."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
