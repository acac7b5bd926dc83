"""Knative's activator, as far as a caller can tell, and what it stands before."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import httpx
from starlette.types import Receive, Scope, Send

from tests.support.kube_api import Object

TICK_S = 0.02


@dataclass(eq=False)
class Pod:
    name: str
    ip: str
    process: asyncio.subprocess.Process | None = None
    ready: bool = False
    stopping: bool = False
    lost: bool = False
    calls: int = 0
    idle_since_s: float = 0.0


@dataclass(eq=False)
class Revision:
    """What serves one Knative Service now."""

    service: Object
    pods: list[Pod] = field(default_factory=list)
    queued: int = 0
    url: str = ""
    deleted: bool = False
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def annotation(self, name: str, default: str) -> str:
        annotations = self.template["metadata"]["annotations"]
        return str(annotations.get(f"autoscaling.knative.dev/{name}", default))

    @property
    def name(self) -> str:
        return str(self.service["metadata"]["name"])

    @property
    def template(self) -> Object:
        return dict(self.service["spec"]["template"])

    @property
    def concurrency(self) -> int:
        return int(self.template["spec"]["containerConcurrency"])

    @property
    def wanted(self) -> int:
        calls = self.queued + sum(pod.calls for pod in self.pods if not pod.stopping)
        return min(int(self.annotation("max-scale", "0")), -(-calls // self.concurrency))


class Activator:
    """An ASGI app: each request waits for a pod with room, and is passed on byte by byte."""

    def __init__(self, revision: Revision, client: httpx.AsyncClient, passed: list[str]) -> None:
        self._revision, self._client, self._passed = revision, client, passed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        work = asyncio.create_task(self._pass(scope, body, send))
        gone = asyncio.create_task(_disconnected(receive))
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (gone, work):
            task.cancel()
        await asyncio.gather(gone, work, return_exceptions=True)
        if not work.cancelled() and (error := work.exception()) is not None:
            raise error

    async def _pass(self, scope: Scope, body: bytes, send: Send) -> None:
        self._passed.append(scope["path"])
        pod = await self._place()
        pod.calls += 1
        try:
            headers = [(k, v) for k, v in scope["headers"] if k not in (b"host", b"content-length")]
            request = self._client.build_request(
                scope["method"],
                f"http://{pod.ip}:8000{scope['path']}",
                headers=headers,
                content=body,
            )
            started = False
            try:
                response = await self._client.send(request, stream=True)
                async with contextlib.aclosing(response):
                    await send(
                        {
                            "type": "http.response.start",
                            "status": response.status_code,
                            "headers": response.headers.raw,
                        }
                    )
                    started = True
                    async for chunk in response.aiter_raw():
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except httpx.TransportError:
                if started:
                    raise ConnectionError("the pod is gone") from None  # uvicorn cuts it off
                head = {"type": "http.response.start", "status": 502, "headers": []}
                await send(head)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            pod.calls -= 1
            pod.idle_since_s = asyncio.get_running_loop().time()

    async def _place(self) -> Pod:
        revision = self._revision
        revision.queued += 1
        try:
            while True:
                for pod in revision.pods:
                    room = pod.calls < revision.concurrency
                    if pod.ready and room and not pod.stopping:
                        return pod
                await asyncio.sleep(TICK_S)
        finally:
            revision.queued -= 1


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
