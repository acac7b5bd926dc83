"""One call to a function behind Knative: HTTP to the Service's URL, frames back.

Between us and the pod stand an ingress, the activator and the pod's queue-proxy. What they answer
in the function's stead (502, 503, 504, or 404 while a route is being made) says that the call was
not admitted; so does a function that is full or draining. The pod that serves a call tells its name
in a header of the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import httpx
import msgspec

from controller.platforms.http_pools import HttpPools
from rlhfless.errors import (
    CapacityError,
    InternalError,
    RlhflessError,
    TransientError,
    from_problem,
)
from rlhfless.frames import FrameReader, encode_request
from rlhfless.messages import (
    DRAIN_PATH,
    INSTANCE_HEADER,
    ROUTES,
    TERMINAL,
    AnyFrame,
    Problem,
    Request,
    Steered,
    SteerRequest,
)

STEER_TIMEOUT_S = 5.0
_HAND_OVER_TIMEOUT_S = 20.0
_STEER_ATTEMPTS = 2
_GATEWAY = {404, 502, 503, 504}
_CONNECT_S = 10.0
_HANDOVER = 0.1
"""Share of a request's time that a function has to hand its work over before Knative cuts it."""


class NotAdmittedError(Exception):
    """The call reached no function that took it; it may be sent again."""

    def __init__(self, error: RlhflessError) -> None:
        super().__init__(error.detail)
        self.error = error


@dataclass(frozen=True)
class Terms:
    """``request_s``: after which Knative ends a request; ``silence_s``: a stream that says nothing
    for so long, though heartbeats are due every five seconds, is broken; ``broken``: statuses that
    say that the function died over the call."""

    token: str
    request_s: float
    silence_s: float
    broken: frozenset[int] = frozenset()


def new_client() -> httpx.AsyncClient:
    """Without a limit on connections: how many calls there are is the pools' business. Proxies of
    the environment are for the world outside of the cluster."""
    timeout = httpx.Timeout(None, connect=_CONNECT_S)
    return httpx.AsyncClient(transport=HttpPools(), timeout=timeout, trust_env=False)


async def call(
    client: httpx.AsyncClient,
    url: str,
    request: Request,
    terms: Terms,
    admitted: Callable[[str], None],
) -> AsyncGenerator[AnyFrame, None]:
    """The frames of one call; ``admitted`` is told which pod took it, before the first frame.

    Raises ``NotAdmittedError`` before any frame, the error a ``Problem`` stands for, and
    ``TransientError`` when the stream breaks.
    """
    body = encode_request(within(request, terms.request_s))
    path = ROUTES[type(request)][1]
    headers = {"authorization": f"Bearer {terms.token}"}
    reader = FrameReader()
    try:
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(terms.request_s + _CONNECT_S):
                sending = client.stream("POST", url + path, content=body, headers=headers)
                response = await stack.enter_async_context(sending)
            if response.status_code != 200:
                raise _refusal(response.status_code, await response.aread(), terms)
            admitted(response.headers.get(INSTANCE_HEADER, ""))
            chunks = aiter(response.aiter_raw())
            while True:
                async with asyncio.timeout(terms.silence_s):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                for frame in reader.feed(chunk):
                    if isinstance(frame, Problem):
                        raise from_problem(frame.problem)
                    yield frame
                    if isinstance(frame, TERMINAL):
                        async with asyncio.timeout(terms.silence_s):  # so it can be used again
                            await anext(chunks, None)
                        return
            reader.close()
            raise TransientError("a function's stream ended without a result")
    except httpx.ConnectError as error:
        raise NotAdmittedError(TransientError(f"{url} cannot be reached: {error}")) from error
    except TimeoutError as error:
        detail = f"a function's stream was silent for {terms.silence_s:g} s"
        raise TransientError(detail) from error
    except httpx.TransportError as error:
        detail = f"a function's stream broke: {str(error) or type(error).__name__}"
        raise TransientError(detail, hint="its pod was ended, or the request's time was up") from (
            error
        )


def within(request: Request, request_s: float) -> Request:
    """The request with a deadline before the one that Knative keeps: what is cut is lost, what is
    handed over goes on elsewhere."""
    most_s = request_s * (1 - _HANDOVER)
    if request.call.deadline_s <= most_s:
        return request
    info = msgspec.structs.replace(request.call, deadline_s=most_s)
    return msgspec.structs.replace(request, call=info)


async def first_frame(stream: AsyncGenerator[AnyFrame, None]) -> AnyFrame | None:
    """A coroutine of its own, so that it can be waited for beside something else."""
    return await anext(stream, None)


async def steer(client: httpx.AsyncClient, url: str, request: SteerRequest, terms: Terms) -> bool:
    """Whether the pod at ``url`` says that it takes the change; asked once more if it does not
    answer, for changes are numbered."""
    for _ in range(_STEER_ATTEMPTS):
        with contextlib.suppress(TimeoutError, RlhflessError, NotAdmittedError):
            async with (
                asyncio.timeout(STEER_TIMEOUT_S),
                contextlib.aclosing(call(client, url, request, terms, lambda _: None)) as frames,
            ):
                async for frame in frames:
                    if isinstance(frame, Steered):
                        return frame.accepted
    return False


async def hand_over(client: httpx.AsyncClient, url: str, terms: Terms) -> bool:
    """Have the pod at ``url`` end its calls; False: it does not answer."""
    headers = {"authorization": f"Bearer {terms.token}"}
    with contextlib.suppress(TimeoutError, httpx.TransportError):
        async with asyncio.timeout(_HAND_OVER_TIMEOUT_S):
            await client.post(url + DRAIN_PATH, headers=headers)
            return True
    return False


async def poke(client: httpx.AsyncClient, url: str, within_s: float) -> str:
    """A request that asks nothing: Knative starts a pod for it if none has room, and holds it until
    then. What went wrong, if something did."""
    try:
        async with asyncio.timeout(within_s):
            response = await client.get(f"{url}/readyz")
    except TimeoutError:
        return f"nothing answered within {within_s:g} s"
    except httpx.TransportError as error:
        return str(error) or type(error).__name__
    return "" if response.status_code == 200 else f"status {response.status_code}"


def _refusal(status: int, body: bytes, terms: Terms) -> Exception:
    try:
        problem = json.loads(body)
    except ValueError:
        problem = None
    if isinstance(problem, dict) and "category" in problem:
        error = from_problem(problem)
        passes = isinstance(error, CapacityError | TransientError)
        return NotAdmittedError(error) if passes else error
    detail = f"the way to a function answered {status}: {body[:200].decode(errors='replace')}"
    if status in _GATEWAY:
        return NotAdmittedError(TransientError(detail))
    if status in terms.broken:
        return TransientError(detail)
    return InternalError(detail)
