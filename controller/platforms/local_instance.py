"""One function instance of the local platform: a process, its socket, and the calls on it.

Times are seconds of the loop's clock. The platform decides when an instance starts, gets calls and
stops; this file knows how.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import httpx
import msgspec

from controller.platforms.base import Deployment, Instance, InstanceState
from controller.platforms.local_logs import tail
from controller.platforms.local_processes import Launcher, Process
from rlhfless.errors import (
    CapacityError,
    InternalError,
    RlhflessError,
    TransientError,
    from_problem,
)
from rlhfless.frames import FrameReader, encode_request
from rlhfless.lifeline import Home
from rlhfless.messages import (
    ROUTES,
    TERMINAL,
    AnyFrame,
    Drain,
    Problem,
    Steered,
    SteerRequest,
)

_TAIL_LINES = 12
STEER_TIMEOUT_S = 5.0
_STEER_ATTEMPTS = 2
_, _STEER_PATH = ROUTES[SteerRequest]
_EXIT_NEWS_S = 2.0
"""How long after a broken stream to wait for word of why the process ended."""


class Refused(Exception):
    """The instance did not admit the call; another, or the same one later, may."""

    def __init__(self, error: RlhflessError) -> None:
        super().__init__(error.detail)
        self.error = error


@dataclass(frozen=True)
class Terms:
    """What every instance of a host is started with. Seconds; ``niceness`` as a process's.

    ``silence_s``: an instance that sends nothing for so long, though heartbeats are due every five
    seconds, hangs.
    """

    token: str
    grace_s: float
    start_timeout_s: float
    silence_s: float
    niceness: int = 0


class LocalInstance:
    def __init__(
        self, name: str, deployment: Deployment, app: str, log: str, home: Home, terms: Terms
    ) -> None:
        self.id = name
        self.deployment = deployment
        self.calls = 0
        self.ready = False
        self.stopping = False
        self.retiring = False  # to go when idle, unless a call needs it
        self.leaving = False  # above the bound: to go when its calls end, and gets no more
        self.dismissed = False  # told to go before it was ready, so not being ready is no failure
        self.paused = False
        self.refusing_since_s: float | None = None
        self.last_used_s = 0.0
        self.free_from_s = 0.0  # when siblings of its owner may take it over, if idle
        self.log_from = 0  # where its present owner's part of the log begins
        self.process: Process | None = None
        self.log = log
        self._app = app
        self._home = home
        self._terms = terms
        self._socket = home.file(f"{name}.sock")
        self._workdir = home.file(f"{name}.d")
        self._transport = httpx.AsyncHTTPTransport(
            uds=self._socket,
            verify=False,  # a Unix socket in a private folder carries no TLS
            limits=httpx.Limits(keepalive_expiry=None),
        )
        self._headers = {"authorization": f"Bearer {terms.token}", "host": "function"}
        self._waits: set[asyncio.Timeout] = set()
        self._haunted = False

    @property
    def state(self) -> InstanceState:
        if self.stopping:
            return "stopping"
        if not self.ready:
            return "cold"
        return "busy" if self.calls else "idle"

    @property
    def told(self) -> Instance:
        """As a platform tells of it."""
        return Instance(self.id, self.deployment.function, self.state, self.calls)

    @property
    def has_room(self) -> bool:
        room = self.calls < self.deployment.concurrency
        return room and self.ready and not (self.stopping or self.leaving or self.paused)

    @property
    def clean(self) -> bool:
        """Whether every call it took has ended there too. One that was broken off here may go on
        there for a while; that it has ended shows when the only call at a time is admitted."""
        alive = self.process is not None and not self.process.exited.done()
        return alive and not (self.paused or self._haunted) and self.refusing_since_s is None

    # --- life -----------------------------------------------------------------------------------

    async def spawn(self, launcher: Launcher) -> Process:
        self.process = await launcher.spawn(
            {
                "function": self.deployment.function,
                "token": self._terms.token,
                "app": self._app,
                "socket": self._socket,
                "threads": self.deployment.threads,
                "accelerator": self.deployment.accelerator,
                "concurrency": self.deployment.concurrency,
                "engine": msgspec.json.encode(self.deployment.engine).decode(),
                "workdir": self._workdir,
                "grace_s": self._terms.grace_s,
                "log": self.log,
                "home": self._home.path,
                "lifeline_fd": self._home.lifeline_fd,
                "niceness": self._terms.niceness,
                "workers": self.deployment.workers,
            }
        )
        self.process.exited.add_done_callback(self._interrupt)
        return self.process

    async def until_ready(self) -> None:
        """Raises ``InternalError`` if the process ends by itself before it is ready, and
        ``CapacityError`` if it is killed or takes too long."""
        assert self.process is not None
        request = httpx.Request("GET", "http://function/readyz")
        pause_s = 0.002
        try:
            async with asyncio.timeout(self._terms.start_timeout_s):
                while not self.process.exited.done():
                    if _exists(self._socket):
                        with contextlib.suppress(httpx.TransportError):
                            response = await self._transport.handle_async_request(request)
                            await response.aread()
                            await response.aclose()
                            if response.status_code == 200:
                                self.ready = True
                                return
                    await asyncio.wait({self.process.exited}, timeout=pause_s)
                    pause_s = min(0.02, pause_s * 1.3)
        except TimeoutError:
            detail = f"{self.id} was not ready within {self._terms.start_timeout_s:g} s"
            raise CapacityError(f"{detail}{self._tail()}", hint=f"see {self.log}") from None
        status = self.process.exited.result()
        if status is not None and status >= 0:
            detail = f"{self.id} could not start (exit code {status}){self._tail()}"
            raise InternalError(detail, hint=f"see {self.log}")
        detail = f"{self.id} was killed while it started ({_describe(status)}){self._tail()}"
        raise CapacityError(detail, hint=f"see {self.log}")

    def terminate(self) -> None:
        """Ask it to drain and end."""
        self.stopping = True
        if self.process is not None:
            self.process.send(signal.SIGTERM)

    async def stop(self, grace_s: float) -> None:
        """Ask it to end, and end it if it has not after ``grace_s``; returns when it is gone."""
        self.terminate()
        if self.process is not None:
            await asyncio.wait({self.process.exited}, timeout=grace_s)
            self.kill()
            await asyncio.wait({self.process.exited})

    def kill(self) -> None:
        self.stopping = True
        if self.process is not None:
            self.process.send(signal.SIGKILL)

    async def clean_up(self) -> None:
        """After its end: connections, socket, scratch folder."""
        await self._transport.aclose()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket)
        await asyncio.to_thread(shutil.rmtree, self._workdir, ignore_errors=True)

    # --- calls ----------------------------------------------------------------------------------

    async def call(self, path: str, body: bytes) -> AsyncGenerator[AnyFrame, None]:
        """The frames of one call. Closing the generator closes the connection, which aborts it.

        Raises ``Refused`` before any frame, the error a ``Problem`` stands for, and
        ``TransientError`` when the process dies, hangs or breaks off.
        """
        request = httpx.Request(
            "POST",
            f"http://function{path}",
            headers=self._headers,
            content=body,
            extensions={"timeout": {"connect": 5.0, "read": self._terms.silence_s}},
        )
        reader = FrameReader()
        response: httpx.Response | None = None
        over = False
        try:
            response = await self._admitted(request)
            if self.deployment.concurrency == 1 and path != _STEER_PATH:
                self._haunted = False
            chunks = aiter(response.aiter_raw())
            while True:
                async with self._while_alive():
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                for frame in reader.feed(chunk):
                    over = isinstance(frame, (Problem, *TERMINAL))
                    if isinstance(frame, Problem):
                        raise from_problem(frame.problem)
                    if isinstance(frame, Drain):
                        self.stopping = True  # somebody else than us told it to go
                    yield frame
                    if isinstance(frame, TERMINAL):
                        async with self._while_alive():  # to its end, so the connection is reused
                            await anext(chunks, None)
                        return
            over = True
            reader.close()
            raise TransientError(f"{self.id} ended its stream without a result{self._tail()}")
        except Refused:
            over = True
            raise
        except httpx.ReadTimeout as error:
            self.kill()
            detail = f"{self.id} sent nothing for {self._terms.silence_s:g} s and was killed"
            raise TransientError(detail + self._tail()) from error
        except httpx.TransportError as error:
            raise await self._broken(error) from error
        finally:
            self._haunted = self._haunted or not over
            if response is not None:
                await response.aclose()

    async def steer(self, request: SteerRequest) -> bool:
        """Whether it says that it takes a change; asked once more if it does not answer, for
        changes are numbered. A dead instance says no."""
        body = encode_request(request)
        for _ in range(_STEER_ATTEMPTS):
            with contextlib.suppress(TimeoutError, TransientError, Refused):
                async with (
                    asyncio.timeout(STEER_TIMEOUT_S),
                    contextlib.aclosing(self.call(_STEER_PATH, body)) as frames,
                ):
                    async for frame in frames:
                        if isinstance(frame, Steered):
                            return frame.accepted
            if self.process is None or self.process.exited.done():
                break
        return False

    async def _admitted(self, request: httpx.Request) -> httpx.Response:
        """The answer's head. Raises ``Refused`` also if the process ended in order before it looked
        at the call: one that drains cuts off nothing that it has admitted."""
        assert self.process is not None
        try:
            async with self._while_alive():
                response = await self._transport.handle_async_request(request)
                if response.status_code != 200:
                    error = _refusal(response.status_code, await response.aread())
                    if isinstance(error, TransientError):
                        self.stopping = True  # it drains: somebody else than us told it to go
                    raise Refused(error)
                self.refusing_since_s = None
                return response
        except (TransientError, httpx.TransportError) as error:
            await asyncio.wait({self.process.exited}, timeout=_EXIT_NEWS_S)
            if self.process.exited.done() and self.process.exited.result() == 0:
                raise Refused(self.death()) from error
            raise

    @contextlib.asynccontextmanager
    async def _while_alive(self) -> AsyncGenerator[None, None]:
        """A stretch of waiting that the end of the process cuts short."""
        assert self.process is not None
        if self.process.exited.done():
            raise self.death()
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            raise self.death() from None

    def _interrupt(self, _: asyncio.Future[int | None]) -> None:
        self.stopping = True
        for wait in self._waits:
            wait.reschedule(0.0)

    async def _broken(self, error: httpx.TransportError) -> TransientError:
        assert self.process is not None
        await asyncio.wait({self.process.exited}, timeout=_EXIT_NEWS_S)
        if self.process.exited.done():
            return self.death()
        return TransientError(f"the stream of {self.id} broke: {error}{self._tail()}")

    def death(self) -> TransientError:
        """Why calls on this instance failed, now that its process is gone."""
        assert self.process is not None
        status = self.process.exited.result()
        detail = f"{self.id} (pid {self.process.pid}) ended: {_describe(status)}"
        return TransientError(detail + self._tail(), hint=f"see {self.log}")

    def _tail(self) -> str:
        lines = tail(self.log, _TAIL_LINES, self.log_from)
        return f"; its log ends:\n{lines}" if lines else ""


def _exists(path: str) -> bool:
    return os.path.exists(path)


def _describe(status: int | None) -> str:
    if status is None:
        return "its exit status is unknown"
    if status >= 0:
        return f"exit code {status}"
    return f"killed by {signal.Signals(-status).name}"


def _refusal(status: int, body: bytes) -> RlhflessError:
    try:
        problem = json.loads(body)
    except ValueError:
        return InternalError(f"a function answered with status {status}: {body[:200]!r}")
    return from_problem(problem)
