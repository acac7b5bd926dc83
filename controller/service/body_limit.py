"""No request body is larger than it may be, or comes for ever, whoever reads it and however it is
sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.service.http import problem
from controller.service.refusals import TooLargeError

IDLE_S = 60.0
"""The next part of a body must have come by then."""


class BodyTooSlow(HTTPException):
    """Raised in whoever reads the body; of all errors, frameworks let this family through."""

    def __init__(self, idle_s: float) -> None:
        super().__init__(408, f"nothing of the request body came for {idle_s:g} s")


class BodyTooLarge(HTTPException):
    """As above."""

    def __init__(self, most: int) -> None:
        super().__init__(413, f"a request body may have {most} bytes")


class BodyLimit:
    """``most`` bytes a body may have, or as many as ``by_path`` says for its path."""

    def __init__(
        self, most: int, by_path: Mapping[str, int] | None = None, idle_s: float = IDLE_S
    ) -> None:
        self._most = most
        self._idle_s = idle_s
        self._by_path = by_path or {}

    async def __call__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        most = self._by_path.get(scope["path"], self._most)
        if _announced(scope) > most:
            error = TooLargeError(f"a request body may have {most} bytes")
            await problem(error)(scope, receive, send)
            return
        got, whole = 0, False

        async def receive_bounded() -> Message:
            nonlocal got, whole
            if whole:
                return await receive()  # until the caller goes away
            try:
                async with asyncio.timeout(self._idle_s):
                    message = await receive()
            except TimeoutError:
                raise BodyTooSlow(self._idle_s) from None
            whole = not message.get("more_body", False)
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
