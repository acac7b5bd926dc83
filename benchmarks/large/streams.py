"""A process that answers rollout calls with made-up tokens at a given pace.

    python -m benchmarks.large.streams FD

Serves HTTP on the listening socket ``FD``, as a function does: uvicorn, a frame a chunk. Each call
gets what it asks for: every sample ``max_tokens`` tokens, ``TOKENS_PER_S`` a second, told every
``progress_s``, at a moment of its own so that calls do not beat together.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec
import uvicorn

from rlhfless.frames import MEDIA_TYPE, encode_frame
from rlhfless.messages import Finished, Frame, Progress, RolloutDone, RolloutRequest, Tokens

TOKENS_PER_S = 40
"""Of a sample: a 7B model's iteration of 25 ms."""

_decode = msgspec.msgpack.Decoder(RolloutRequest).decode
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def app(scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Send) -> None:
    if scope["method"] == "GET":  # is anybody there?
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    request = _decode(body + message["body"])
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"x-rlhfless-instance", b"made-up")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for frames in _answer(request):
        chunk = b"".join(map(encode_frame, frames))
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _answer(request: RolloutRequest) -> AsyncGenerator[list[Frame]]:
    """What is told at once."""
    loop = asyncio.get_running_loop()
    rows = list(range(len(request.samples)))
    most = request.samples[0].max_tokens
    told, every_s = 0, request.progress_s
    began_s = loop.time() - random.random() * every_s
    count = 1
    while told < most:
        await asyncio.sleep(began_s + count * every_s - loop.time())
        new = min(most, round(count * every_s * TOKENS_PER_S)) - told
        count += 1
        if new:
            yield [_tokens(rows, told, new)]
        told += new
    done = Finished(samples=rows, reasons=["length"] * len(rows))
    progress = Progress(running=0, waiting=0, kv_tokens=0, iterations=told)
    yield [done, progress, RolloutDone(generated_tokens=told * len(rows))]


def _tokens(rows: list[int], start: int, count: int) -> Tokens:
    num = count * len(rows)
    return Tokens(
        samples=rows,
        starts=[start] * len(rows),
        counts=[count] * len(rows),
        tokens=[20_000 + n % 100_000 for n in range(num)],  # as long on the wire as real ones
        logprobs=bytes(4 * num),
        version=1,
    )


def main() -> None:
    config = uvicorn.Config(
        app, fd=int(sys.argv[1]), log_level="error", access_log=False, lifespan="off", ws="none"
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
