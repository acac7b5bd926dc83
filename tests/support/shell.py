"""Functions made of handlers, worn by a shell, and a client that speaks ASGI to it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from functions.context import CallContext, Handler
from functions.shell import Shell, create_app
from rlhfless.frames import FrameReader, encode_request
from rlhfless.messages import (
    TERMINAL,
    AnyFrame,
    CallInfo,
    Frame,
    Heartbeat,
    ModelRef,
    Problem,
    Progress,
    Request,
    RewardDone,
    RewardRequest,
    RolloutDone,
    RolloutRequest,
    SamplingParams,
)

TOKEN = "the token"
REWARD = "/v1/reward"
ROLLOUT = "/v1/rollout"


class Echo:
    """A function of given handlers. ``closed`` tells whether the shell let it go."""

    def __init__(self, **handlers: Handler) -> None:
        kinds: dict[str, type[Request]] = {"reward": RewardRequest, "rollout": RolloutRequest}
        self.handlers: Mapping[type[Request], Handler] = {
            kinds[name]: handler for name, handler in handlers.items()
        }
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Client:
    """One ASGI request. ``frames`` fill as they come; ``leave`` disconnects."""

    def __init__(self, app: Any, path: str, body: bytes, token: str, method: str) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.frames: list[AnyFrame] = []
        self.busy_s: float | None = None
        self._reader = FrameReader()
        self._app = app
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"authorization", f"Bearer {token}".encode())],
        }
        self._request: list[bytes] = [body]
        self._gone = asyncio.Event()
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._app(self._scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._request:
            return {"type": "http.request", "body": self._request.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            self.body += message["body"]
            if self.status == 200 and "frames" in self.headers["content-type"]:
                for frame in self._reader.feed(message["body"]):
                    if isinstance(frame, TERMINAL):
                        self.busy_s = self._pop_busy()
                    self.frames.append(frame)
        self._news.set()

    def _pop_busy(self) -> float | None:
        """What the frame right before the terminal one says, if it is a report of work done."""
        if self.frames and isinstance(self.frames[-1], Heartbeat):
            report = self.frames.pop()
            assert isinstance(report, Heartbeat)
            return report.busy_s
        return None

    async def until(self, kind: type[Frame]) -> None:
        while not any(isinstance(frame, kind) for frame in self.frames):
            self._news.clear()
            await self._news.wait()

    def leave(self) -> None:
        self._gone.set()

    @property
    def problem(self) -> dict[str, Any]:
        if self.frames:
            last = self.frames[-1]
            assert isinstance(last, Problem)
            return last.problem
        return dict(json.loads(self.body))


class Service:
    def __init__(self, function: Echo, **options: Any) -> None:
        self.app = create_app("reward", function, TOKEN, **options)
        self.shell: Shell = self.app.state.shell

    def post(self, path: str, body: bytes, token: str = TOKEN) -> Client:
        return Client(self.app, path, body, token, "POST")

    async def ask(self, path: str, body: bytes, token: str = TOKEN) -> Client:
        client = self.post(path, body, token)
        await client.task
        return client

    async def get(self, path: str) -> Client:
        client = Client(self.app, path, b"", "none", "GET")
        await client.task
        return client


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test; bounded, so that a broken shell fails instead of hanging."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 30))

    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


async def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread to get somewhere."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def call_info(store: Path | str, name: str, deadline_s: float = 60.0) -> CallInfo:
    return CallInfo(id=name, job="job", step=0, deadline_s=deadline_s, store=str(store))


def reward(store: Path | str, name: str = "0/reward/0", deadline_s: float = 60.0) -> bytes:
    return encode_request(
        RewardRequest(
            call=call_info(store, name, deadline_s),
            functions=[],
            sample_ids=["s"],
            prompts=["p"],
            completions=["c"],
            completion_ids=[[1]],
        )
    )


def rollout(store: Path | str, name: str = "0/rollout/0") -> bytes:
    return encode_request(
        RolloutRequest(
            call=call_info(store, name),
            model=ModelRef(path="m", job="job", version=0),
            sampling=SamplingParams(),
            prompts=[],
            samples=[],
        )
    )


def counting() -> tuple[list[str], Handler]:
    """A reward handler whose answer is how many calls ran before it."""
    runs: list[str] = []

    def handle(request: RewardRequest, context: CallContext) -> Iterator[Frame]:
        runs.append(request.call.id)
        yield RewardDone(scores=[], totals=[float(len(runs))])

    return runs, handle


def raising(error: BaseException) -> Handler:
    def handle(request: Any, context: CallContext) -> Iterator[Frame]:
        yield Progress(running=0, waiting=0, kv_tokens=0, iterations=0)
        raise error

    return handle


class Gate:
    """A rollout handler that works until it is let go or told to stop."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.ended_for: str | None = None

    def handle(self, request: Any, context: CallContext) -> Iterator[Frame]:
        self.entered.set()
        yield Progress(running=1, waiting=0, kv_tokens=0, iterations=0)
        while context.stop_reason is None and not self.open.wait(0.001):
            pass
        self.ended_for = context.stop_reason
        if isinstance(request, RolloutRequest):
            yield RolloutDone(unfinished=[0] if self.ended_for else [])
        else:
            yield RewardDone(scores=[], totals=[1.0])
