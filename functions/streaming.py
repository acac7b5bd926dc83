"""The response that carries frames, and notices at once when its reader goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from rlhfless.frames import MEDIA_TYPE


@dataclass(frozen=True)
class Answer:
    """``chunks`` to send, and ``end`` to call when nobody wants more, begun or not."""

    chunks: AsyncGenerator[bytes, None]
    end: Callable[[], None]


class FrameStream(Response):
    """Sends chunks as they come. When the client disconnects the answer is ended, even while it is
    waiting for its next chunk (Starlette's own streams notice only when they next send)."""

    media_type = MEDIA_TYPE

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.status_code = 200
        self.background = None
        self.init_headers()
        del self.headers["content-length"]

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            pump.cancel()  # no effect on a pump that is done
            await asyncio.gather(pump, gone, return_exceptions=True)
            await self._answer.chunks.aclose()
            self._answer.end()
        if not pump.cancelled():
            pump.result()

    async def _pump(self, send: Send) -> None:
        start: Message = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        async for chunk in self._answer.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
