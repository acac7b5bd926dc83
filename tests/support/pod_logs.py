"""What a kubelet keeps of its containers' words, and the API server's route to it.

As the real one: dated lines; by whole seconds from ``sinceTime``; of a container that runs, or of
the one before its last restart; refused while it waits to be started, and when its pod is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.kube_api import ApiError, KubeApi

TICK_S = 0.01
CONTAINER = "function"


@dataclass(eq=False)
class Life:
    """What one life of a container said: lines with their time in nanoseconds."""

    lines: list[tuple[int, bytes]] = field(default_factory=list)
    ended: bool = False

    def say(self, *texts: str) -> None:
        for text in texts:
            self.lines.append((time.time_ns(), text.encode()))


class PodLogs:
    """``lives``: by pod, the lives of its container; ``asked``: the queries that came;
    ``cut_after``: streams break off, once each, after so many lines and half of another."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self.lives: dict[str, list[Life]] = {}
        self.asked: list[dict[str, str]] = []
        self.cut_after: list[int] = []
        path = "/api/v1/namespaces/{namespace}/pods/{name}/log"
        self.route = Route(path, self._answer, methods=["GET"])

    def begin(self, pod: str) -> Life:
        life = Life()
        self.lives.setdefault(pod, []).append(life)
        return life

    async def keep(self, life: Life, output: asyncio.StreamReader) -> None:
        """All that a process says, to its end."""
        async for line in output:
            life.lines.append((time.time_ns(), line.rstrip(b"\n")))
        life.ended = True

    async def _answer(self, request: Request) -> Response:
        try:
            return StreamingResponse(self._begin(request), media_type="text/plain")
        except ApiError as error:
            return JSONResponse(error.body, error.code)

    def _begin(self, request: Request) -> AsyncGenerator[bytes, None]:
        query, name = dict(request.query_params), request.path_params["name"]
        api = self._api
        if api.token and request.headers.get("authorization") != f"Bearer {api.token}":
            raise ApiError(401, "Unauthorized", "Unauthorized")
        if ("get", "pods/log") in api.denied:
            raise ApiError(403, "Forbidden", f'pods "{name}" is forbidden: cannot get pods/log')
        self.asked.append(query)
        api.store.get(("api/v1", "pods", request.path_params["namespace"]), name)
        lives = self.lives.get(name, [])
        back = 2 if query.get("previous") == "true" else 1
        if query.get("container") != CONTAINER or len(lives) < back:
            waits = f'container "{query.get("container")}" in pod "{name}" is waiting to start'
            raise ApiError(400, "BadRequest", waits)
        cut = self.cut_after.pop(0) if self.cut_after else None
        return _told(lives[-back], query, cut)


async def _told(life: Life, query: dict[str, str], cut: int | None) -> AsyncGenerator[bytes, None]:
    since = query.get("sinceTime", "")
    since_ns = int(datetime.fromisoformat(since).timestamp()) * 10**9 if since else 0
    place = 0
    while True:
        while place < len(life.lines):
            at_ns, text = life.lines[place]
            place += 1
            if at_ns < since_ns:
                continue
            line = f"{_stamp(at_ns)} ".encode() + text + b"\n"
            if cut == 0:
                yield line[: len(line) // 2]
                return  # a proxy ends the answer in good order
            cut = None if cut is None else cut - 1
            yield line
        if query.get("follow") != "true" or life.ended:
            return
        await asyncio.sleep(TICK_S)


def _stamp(at_ns: int) -> str:
    second = datetime.fromtimestamp(at_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{second}.{at_ns % 10**9:09d}Z"
