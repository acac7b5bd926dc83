"""The shell every function wears: HTTP around handlers.

``POST`` a request at its route with ``Authorization: Bearer <token>``; what is refused is refused
with a problem document and its status (401 token, 422 bytes that are no request, 503 draining or
full), what is admitted is answered 200 with a stream of frames that ends with exactly one terminal
frame. ``GET /healthz /readyz /metrics`` need no token.

A rollout streams and is idempotent by its seeds; a ``SteerRequest`` changes it while it runs, is
answered at once and needs no room (``functions.steering``). Every other call has one result:
repeats of its id join the run in flight, or get the first result (``functions.results``). A caller
that goes away stops its call; a call that others have joined goes on for them.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from functions.context import CallContext, Function, Handler
from functions.execution import Execution
from functions.metrics import Metrics
from functions.readings import Measured
from functions.results import RecentResults, open_store, result_name, stored_first
from functions.steering import Steering
from functions.streaming import Answer, FrameStream
from rlhfless import messages
from rlhfless.errors import CapacityError, RlhflessError, TransientError, UserError
from rlhfless.frames import encode_frame
from rlhfless.messages import (
    DRAIN_PATH,
    ROUTES,
    FunctionName,
    Heartbeat,
    RolloutRequest,
    SteerRequest,
)

HEARTBEAT_S = 5.0
_log = logging.getLogger(__name__)


@dataclass
class _Shared:
    """A unary call in flight and how many wait for its result."""

    execution: Execution
    result: asyncio.Future[bytes]
    callers: int = 0


@dataclass
class Shell:
    """State of one instance's calls. All methods run in the event loop."""

    name: FunctionName
    function: Function
    token: str
    concurrency: int = 1
    heartbeat_s: float = HEARTBEAT_S
    draining: bool = False
    metrics: Metrics = field(init=False)
    _streams: set[Execution] = field(default_factory=set)
    _active: set[Execution] = field(default_factory=set)
    _told_to_end: set[Execution] = field(default_factory=set)
    _shared: dict[tuple[str, str], _Shared] = field(default_factory=dict)
    _recent: RecentResults = field(default_factory=RecentResults)
    _steering: Steering = field(default_factory=Steering)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _num_answers: int = 0

    def __post_init__(self) -> None:
        function = self.function
        told = function.readings if isinstance(function, Measured) else None
        self.metrics = Metrics(self.name, told)
        self._idle = asyncio.Event()
        self._idle.set()
        self._threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix="call")

    # --- calls --------------------------------------------------------------------------------

    def answer(self, request: messages.Request) -> Answer:
        """Admit a call and return its answer; raises ``CapacityError`` if there is no room now."""
        if isinstance(request, SteerRequest):
            steered = encode_frame(self._steering.steer(request))
            return self._answer(_one(steered), lambda: None)
        handler = self.function.handlers[type(request)]
        if isinstance(request, RolloutRequest):
            self._admit()
            execution = self._start(handler, request)
            self._streams.add(execution)
            self._steering.began(request.call, execution.context.inbox)
            return self._answer(
                execution.chunks(self.heartbeat_s), lambda: self._end_stream(execution)
            )
        recent = self._recent.get(request.call) if _has_result(request) else None
        if recent is not None:
            return self._answer(_one(recent), lambda: None)
        key = (request.call.store, result_name(request.call))
        shared = self._shared.get(key)
        if shared is None:
            self._admit()
            shared = self._share(key, handler, request)
        shared.callers += 1
        return self._answer(self._wait(shared), lambda: self._leave(key, shared))

    def _answer(self, chunks: AsyncGenerator[bytes, None], end: Callable[[], None]) -> Answer:
        def ended() -> None:
            end()
            self._num_answers -= 1
            self._note_idle()

        self._num_answers += 1
        self._idle.clear()
        return Answer(chunks, ended)

    def _note_idle(self) -> None:
        if not self._active and not self._num_answers:
            self._idle.set()

    def _admit(self) -> None:
        if self.draining:
            raise TransientError(f"this {self.name} instance is going away")
        if len(self._active) >= self.concurrency:
            raise CapacityError(f"this {self.name} instance is serving {len(self._active)} calls")

    def _start(self, handler: Handler, request: messages.Request) -> Execution:
        call = request.call
        context = CallContext(open_store(call.store), time.monotonic() + call.deadline_s)
        execution = Execution(handler, request, context, self._ended)
        self._active.add(execution)
        self._idle.clear()
        self.metrics.began()
        self._threads.submit(execution.run, self.metrics.observe)
        return execution

    def _ended(self, execution: Execution) -> None:
        self._active.discard(execution)
        self._steering.ended(execution.call, execution.context.inbox)
        self.metrics.ended(execution)
        self._note_idle()

    def _end_stream(self, execution: Execution) -> None:
        self._streams.discard(execution)
        self._steering.ended(execution.call, execution.context.inbox)
        execution.abandon()

    def _share(self, key: tuple[str, str], handler: Handler, request: messages.Request) -> _Shared:
        keeps = _has_result(request)
        execution = self._start(stored_first(handler) if keeps else handler, request)
        shared = _Shared(execution, asyncio.get_running_loop().create_future())
        self._shared[key] = shared

        async def finish() -> None:
            result = b""
            async for chunk in execution.chunks(float("inf"), report_busy=False):
                result = chunk
            if self._shared.get(key) is shared:
                del self._shared[key]
            if result and keeps and execution.outcome == "ok":
                self._recent.add(request.call, result)
            shared.result.set_result(result)

        task = asyncio.create_task(finish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return shared

    async def _wait(self, shared: _Shared) -> AsyncGenerator[bytes, None]:
        while not shared.result.done():
            done, _ = await asyncio.wait({shared.result}, timeout=self.heartbeat_s)
            if not done:
                yield encode_frame(Heartbeat(busy_s=shared.execution.elapsed_s))
        yield encode_frame(shared.execution.last_heartbeat()) + shared.result.result()

    def _leave(self, key: tuple[str, str], shared: _Shared) -> None:
        shared.callers -= 1
        if shared.callers == 0 and not shared.result.done():
            shared.execution.abandon()
            if self._shared.get(key) is shared:
                del self._shared[key]

    # --- the end ------------------------------------------------------------------------------

    def hand_over(self, reason: str) -> None:
        """Admit nothing more, ask running calls to end, each once."""
        self.draining = True
        self._steering.close()
        for execution in self._active - self._told_to_end:
            self._told_to_end.add(execution)
            if execution in self._streams:
                execution.announce_drain(reason)
            else:
                execution.stop("drain")

    async def drain(self, grace_s: float, reason: str = "SIGTERM") -> bool:
        """Hand over what runs; False if some calls had not ended after ``grace_s``."""
        self.hand_over(reason)
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("%d calls did not end within %g s", len(self._active), grace_s)
            return False
        return True

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for task in self._tasks:
            task.cancel()
        self.function.close()


def create_app(
    name: FunctionName,
    function: Function,
    token: str,
    *,
    concurrency: int = 1,
    heartbeat_s: float = HEARTBEAT_S,
) -> FastAPI:
    """The ASGI app of one function; ``app.state.shell`` is its ``Shell``.

    ``token`` is what callers must bear (never empty). ``concurrency`` calls run at once, each in a
    thread of its own.
    """
    if not token:
        raise UserError("a function needs a token; without one anybody could call it")
    shell = Shell(name, function, token, concurrency, heartbeat_s)
    app = FastAPI(title=f"rlhfless {name}", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.shell = shell
    steers = (SteerRequest,) if RolloutRequest in function.handlers else ()
    for kind in (*function.handlers, *steers):
        app.add_api_route(ROUTES[kind][1], _endpoint(shell, kind), methods=["POST"])
    _add_drain(app, shell)
    _add_health(app, shell)
    return app


def _endpoint(shell: Shell, kind: type[Any]) -> Callable[[Request], Awaitable[Response]]:
    decoder = msgspec.msgpack.Decoder(kind)

    async def call(request: Request) -> Response:
        if (refusal := _unknown(shell, request)) is not None:
            return refusal
        try:
            message = decoder.decode(await request.body())
        except msgspec.DecodeError as problem:
            return _refuse(shell, UserError(f"the body is no {kind.__name__}: {problem}"), 422)
        try:
            return FrameStream(shell.answer(message))
        except RlhflessError as error:
            return _refuse(shell, error, error.status)

    return call


def _unknown(shell: Shell, request: Request) -> Response | None:
    """The answer to a caller that does not bear the token."""
    given = request.headers.get("authorization", "").encode("latin-1")
    if hmac.compare_digest(given, f"Bearer {shell.token}".encode()):
        return None
    error = UserError("the token is missing or wrong")
    return _refuse(shell, error, 401, {"WWW-Authenticate": "Bearer"})


def _add_drain(app: FastAPI, shell: Shell) -> None:
    """For whoever knows before us that this instance is about to go."""

    async def drain(request: Request) -> Response:
        if (refusal := _unknown(shell, request)) is not None:
            return refusal
        shell.hand_over("told to go")
        return Response(status_code=202)

    app.add_api_route(DRAIN_PATH, drain, methods=["POST"])


def _refuse(
    shell: Shell, error: RlhflessError, status: int, headers: dict[str, str] | None = None
) -> Response:
    shell.metrics.refused(status)
    return JSONResponse(
        error.to_problem() | {"status": status},
        status,
        headers,
        media_type="application/problem+json",
    )


def _add_health(app: FastAPI, shell: Shell) -> None:
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    async def readyz() -> Response:
        if shell.draining:
            return Response("draining\n", 503, media_type="text/plain")
        return Response("ready\n", media_type="text/plain")

    async def metrics() -> Response:
        return Response(shell.metrics.text(), media_type="text/plain; version=0.0.4")

    app.add_api_route("/healthz", healthz)
    app.add_api_route("/readyz", readyz)
    app.add_api_route("/metrics", metrics)


def _has_result(request: messages.Request) -> bool:
    """Whether the first result stands for a repeat. The effect of some calls lies outside the store
    (a folder, an instance's memory), where it may be undone: those are made again."""
    return not isinstance(request, messages.ExportRequest | messages.GradientsRequest)


async def _one(chunk: bytes) -> AsyncGenerator[bytes, None]:
    yield chunk
