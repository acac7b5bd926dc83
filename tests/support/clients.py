"""Both clients against a scripted service, so that what is asked of one is asked of the other."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import httpx

import rlhfless

Kind = Literal["waiting", "awaiting"]
KINDS: tuple[Kind, Kind] = ("waiting", "awaiting")
KEY = "rlk_test"


class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that breaks off after ``chunks``; or, not ``broken``, one that ends there."""

    def __init__(self, *chunks: bytes, broken: bool = True) -> None:
        self._chunks = chunks
        self._broken = broken

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        if self._broken:
            raise httpx.ReadError("cut")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


class Script:
    """Answers requests in order; keeps those it got, and how long was waited in between. An answer
    that is an exception is raised."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self._answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.slept: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return _fresh(answer)

    @property
    def paths(self) -> list[str]:
        return [request.url.raw_path.decode() for request in self.requests]


def _fresh(answer: httpx.Response) -> httpx.Response:
    """One that nobody has read yet, as an answer given twice must be."""
    if isinstance(answer.stream, Cut):
        return httpx.Response(answer.status_code, headers=answer.headers, stream=answer.stream)
    return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


def outcome(kind: Kind, script: Script, call: Callable[[Any], Any], *, retries: int = 3) -> Any:
    """What ``call`` answers, given a client; of an iterator, all it yields."""
    transport = httpx.MockTransport(script)
    if kind == "waiting":
        with rlhfless.Client(
            "http://service",
            KEY,
            retries=retries,
            transport=transport,
            sleep=script.slept.append,
        ) as client:
            answer = call(client)
            return list(answer) if isinstance(answer, Iterator) else answer

    async def sleep(seconds: float) -> None:
        script.slept.append(seconds)

    async def main() -> Any:
        async with rlhfless.AsyncClient(
            "http://service", KEY, retries=retries, transport=transport, sleep=sleep
        ) as client:
            answer = call(client)
            if inspect.isawaitable(answer):
                return await answer
            return [item async for item in answer]

    return asyncio.run(main())


def document(**values: Any) -> httpx.Response:
    return httpx.Response(200, json=values)


def page(*entries: dict[str, Any], more: bool = False) -> httpx.Response:
    return document(object="list", data=list(entries), has_more=more)


def job(number: int = 1, state: str = "running", **values: Any) -> dict[str, Any]:
    """A job's document; ``number`` makes its id."""
    return {
        "id": f"job-{number:028x}",
        "name": "job",
        "created_at": 1.0,
        "updated_at": 2.0,
        "state": state,
        "states": {},
        "spec": {},
        **values,
    }


def event(number: int, type_: str = "step", **data: Any) -> dict[str, Any]:
    return {
        "id": f"{number}-0",
        "created_at": 1.0,
        "type": type_,
        "level": "info",
        "message": f"event {number}",
        "data": data,
    }


def streamed(*events: dict[str, Any]) -> bytes:
    """As the service sends them."""
    return b"".join(
        f"id: {each['id']}\nevent: {each['type']}\ndata: {json.dumps(each)}\n\n".encode()
        for each in events
    )
