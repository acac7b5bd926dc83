"""What performs flows: over HTTP, in real time, waiting (``Driver``) or awaiting (``AsyncDriver``).

The two are the same line by line, but for ``await``. Nothing else in the clients does I/O.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, assert_never

import httpx

from rlhfless.client.flows import (
    Again,
    Command,
    Flow,
    Head,
    Item,
    Items,
    More,
    Open,
    Pause,
    Request,
    Work,
)
from rlhfless.client.retries import delay_s
from rlhfless.errors import RlhflessError, TransientError, UserError

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Done(Generic[T]):
    value: T


def advance(flow: Any, reply: Any) -> Any:
    """The flow's next command after a ``reply``, which is raised in it if it is an exception; or
    that it is done."""
    try:
        return flow.throw(reply) if isinstance(reply, BaseException) else flow.send(reply)
    except StopIteration as stop:
        return Done(stop.value)


class Driver:
    """Performs any number of flows side by side. ``retries``: how often something is tried after
    its first attempt; ``timeout_s``: bound on every silence, however patient a request is."""

    def __init__(
        self, http: httpx.Client, retries: int, timeout_s: float, sleep: Callable[[float], None]
    ) -> None:
        self.http = http
        self.retries = retries
        self.timeout_s = timeout_s
        self.sleep = sleep

    def run(self, flow: Flow[T]) -> T:
        with closing(flow), _Exchange(self) as exchange:
            command = advance(flow, None)
            while not isinstance(command, Done):
                command = advance(flow, exchange.perform(command))
            result: T = command.value
            return result

    def items(self, flow: Items[T]) -> Iterator[T]:
        with closing(flow), _Exchange(self) as exchange:
            command = advance(flow, None)
            while not isinstance(command, Done):
                if isinstance(command, Item):
                    yield command.value
                    command = advance(flow, None)
                else:
                    command = advance(flow, exchange.perform(command))


class AsyncDriver:
    """As ``Driver``; work on the disk is done in threads."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        retries: int,
        timeout_s: float,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.http = http
        self.retries = retries
        self.timeout_s = timeout_s
        self.sleep = sleep

    async def run(self, flow: Flow[T]) -> T:
        with closing(flow):
            async with _AsyncExchange(self) as exchange:
                command = advance(flow, None)
                while not isinstance(command, Done):
                    command = advance(flow, await exchange.perform(command))
                result: T = command.value
                return result

    async def items(self, flow: Items[T]) -> AsyncIterator[T]:
        with closing(flow):
            async with _AsyncExchange(self) as exchange:
                command = advance(flow, None)
                while not isinstance(command, Done):
                    if isinstance(command, Item):
                        yield command.value
                        command = advance(flow, None)
                    else:
                        command = advance(flow, await exchange.perform(command))


class _Exchange:
    """What a flow has open."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._open = ExitStack()
        self._chunks: Iterator[bytes] = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def perform(self, command: Command) -> Any:
        """The reply to a command, or the error that is to be raised in its flow."""
        driver = self._driver
        try:
            match command:
                case Open(request):
                    return self._send(request)
                case More():
                    with told(driver.http):
                        return next(self._chunks, None)
                case Again(attempt, error, after_s):
                    if attempt > driver.retries:
                        return error
                    driver.sleep(delay_s(attempt, after_s, random.random()))
                case Pause(seconds):
                    driver.sleep(seconds)
                case Work(function):
                    return function()
                case _:
                    assert_never(command)
        except (RlhflessError, OSError) as error:
            return error

    def _send(self, request: Request) -> Head:
        http = self._driver.http
        self._open.close()
        with told(http):
            built = _build(self._driver, request, self._open)
            response = http.send(built, stream=True)
            self._open.callback(response.close)
        self._chunks = response.iter_bytes()
        return Head(response.status_code, dict(response.headers))


class _AsyncExchange:
    """As ``_Exchange``."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._open = AsyncExitStack()
        self._chunks: AsyncIterator[bytes] = _nothing()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def perform(self, command: Command) -> Any:
        driver = self._driver
        try:
            match command:
                case Open(request):
                    return await self._send(request)
                case More():
                    with told(driver.http):
                        return await anext(self._chunks, None)
                case Again(attempt, error, after_s):
                    if attempt > driver.retries:
                        return error
                    await driver.sleep(delay_s(attempt, after_s, random.random()))
                case Pause(seconds):
                    await driver.sleep(seconds)
                case Work(function):
                    return await asyncio.to_thread(function)
                case _:
                    assert_never(command)
        except (RlhflessError, OSError) as error:
            return error

    async def _send(self, request: Request) -> Head:
        http = self._driver.http
        await self._open.aclose()
        with told(http):
            built = _build(self._driver, request, self._open)
            response = await http.send(built, stream=True)
            self._open.push_async_callback(response.aclose)
        self._chunks = response.aiter_bytes()
        return Head(response.status_code, dict(response.headers))


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


def _build(
    driver: Driver | AsyncDriver, request: Request, stack: ExitStack | AsyncExitStack
) -> httpx.Request:
    """A fresh request for each attempt; a file that it sends is closed with ``stack``."""
    silence_s = min(request.read_timeout_s, driver.timeout_s)
    connect_s = min(CONNECT_TIMEOUT_S, driver.timeout_s)
    timeout = httpx.Timeout(silence_s, connect=connect_s, pool=None)
    content: dict[str, Any] = {} if request.body is None else {"json": request.body}
    if (upload := request.upload) is not None:
        file = stack.enter_context(open(upload.path, "rb"))  # noqa: SIM115 - the stack closes it
        content = {"data": dict(upload.fields), "files": {"file": (upload.filename, file)}}
    return driver.http.build_request(
        request.method,
        request.path,
        params=dict(request.params),
        headers=dict(request.headers),
        timeout=timeout,
        **content,
    )


@contextmanager
def told(http: httpx.Client | httpx.AsyncClient) -> Iterator[None]:
    """httpx's errors as ours."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise TransientError(
            f"cannot reach the service at {http.base_url}: {error or 'no answer'}",
            hint="start it with rlhfless serve, or set RLHFLESS_URL to where it is",
        ) from error
    except (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL) as error:
        raise UserError(
            f"cannot ask {http.base_url}: {error}", hint="see RLHFLESS_URL and RLHFLESS_API_KEY"
        ) from error
    except httpx.RequestError as error:
        what = str(error) or type(error).__name__
        raise TransientError(f"the connection to the service broke: {what}") from error
