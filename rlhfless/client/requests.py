"""The flows that all others are made of: a request with its retries, pages, streams.

Tried again, as often as the client is patient, are broken connections and refusals that may be over
soon: 429, 502, 503 and 504, and whatever the service itself says is transient (an earlier attempt
of the same request may still be worked on). Each POST carries an ``Idempotency-Key``, the same at
every attempt, so that one whose answer was lost is not done twice.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from rlhfless import rest
from rlhfless.client.flows import Again, Flow, Head, Item, Items, More, Open, Request
from rlhfless.client.sse import Parser
from rlhfless.errors import (
    InternalError,
    RlhflessError,
    TransientError,
    UnauthenticatedError,
    UserError,
    from_problem,
    is_retryable,
)

T = TypeVar("T")
D = TypeVar("D", bound=rest.Document)

AGAIN = frozenset({429, 502, 503, 504})
"""Statuses of refusals that may be over soon."""
PAGE = 100
"""Entries asked for at once: the most that the service gives."""
STREAM_TIMEOUT_S = 20.0
"""A stream says something every second, if only that it is there."""
KEY_HINT = "set RLHFLESS_API_KEY to a key of the service (rlhfless keys create makes one)"
Params = Mapping[str, str | int | bool | None]


def path(*parts: str | int) -> str:
    """``/v1/...`` with each part quoted, so that none leads elsewhere."""
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)


def asked(request: Request, read: Callable[[Head], Flow[T]]) -> Flow[T]:
    """What ``read`` makes of the answer; it is called anew where the answer breaks off. Raises what
    the service refused the request with, or the last ``TransientError``."""
    if request.method == "POST":
        key = {"Idempotency-Key": uuid.uuid4().hex}
        request = replace(request, headers=key | dict(request.headers))
    attempt = 0
    while True:
        attempt += 1
        after_s = None
        error: RlhflessError
        try:
            head: Head = yield Open(request)
            if head.status < 300 or (attempt > 1 and _is_gone(request, head)):
                return (yield from read(head))
            error = refusal(head.status, (yield from content(head)))
        except TransientError as broken:
            error = broken
        else:
            if head.status not in AGAIN and not is_retryable(error):
                raise error
            after_s = _seconds(head.headers.get("retry-after"))
        yield Again(attempt, error, after_s)


def content(_: Head) -> Flow[bytes]:
    """All there is of what is open."""
    chunks: list[bytes] = []
    while (chunk := (yield More())) is not None:
        chunks.append(chunk)
    return b"".join(chunks)


def at_once(head: Head) -> Flow[Head]:
    """Leaves the body to be read."""
    yield from ()
    return head


def ask(model: type[D], request: Request) -> Flow[D]:
    """The document that answers a request."""
    return decoded(model, (yield from asked(request, content)))


def get(model: type[D], path: str, params: Params | None = None) -> Flow[D]:
    return ask(model, Request(method="GET", path=path, params=_given(params)))


def post(model: type[D], path: str, body: Any = None, params: Params | None = None) -> Flow[D]:
    return ask(model, Request(method="POST", path=path, params=_given(params), body=body))


def delete(path: str) -> Flow[None]:
    yield from asked(Request(method="DELETE", path=path), content)


def pages(
    model: type[D], path: str, params: Params | None = None, after: str | None = None
) -> Items[D]:
    """Every entry of a list, one page asked for after another."""
    while True:
        page = yield from get(_Page, path, {**(params or {}), "limit": PAGE, "after": after})
        for entry in page.data:
            yield Item(parsed(model, entry))
        if not page.has_more or not page.data:
            return
        after = str(page.data[-1]["id"])


def stream(
    model: type[D], path: str, ended: Callable[[], Flow[bool]], after: str | None = None
) -> Items[D]:
    """Every entry of a list that grows, each as it comes and once, until ``ended``.

    A stream that is cut is taken up after the last entry that arrived. One that ends may have been
    cut as well: it is over when what it tells of is, and the pages have no more.
    """
    attempt = 0
    while True:
        headers = {"Accept": "text/event-stream"}
        if after is not None:
            headers["Last-Event-ID"] = after
        request = Request(method="GET", path=path, headers=headers, read_timeout_s=STREAM_TIMEOUT_S)
        yield from asked(request, at_once)
        parser = Parser()
        try:
            while (chunk := (yield More())) is not None:
                attempt = 0
                for message in parser.feed(chunk):
                    after = message.id or after
                    yield Item(decoded(model, message.data))
        except TransientError as broken:
            cut = broken
        else:
            cut = TransientError("the service ends the stream again and again")
        if (yield from ended()):
            yield from pages(model, path, after=after)
            return
        attempt += 1
        yield Again(attempt, cut)


class _Page(rest.Document):
    data: list[dict[str, Any]]
    has_more: bool


def _is_gone(request: Request, head: Head) -> bool:
    """Whether a repeated deletion was done the first time."""
    return request.method == "DELETE" and head.status == 404


def _given(params: Params | None) -> dict[str, str | int | bool]:
    return {name: value for name, value in (params or {}).items() if value is not None}


def _seconds(text: str | None) -> float | None:
    """Of a ``Retry-After``; its other form, a date, is not ours to send."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


def decoded(model: type[D], text: str | bytes) -> D:
    """A document in JSON. Raises ``InternalError`` for anything else."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise _not_understood(str(error)) from error
    return parsed(model, values)


def parsed(model: type[D], values: Any) -> D:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _not_understood(str(error)) from error


def _not_understood(why: str) -> InternalError:
    return InternalError(
        f"the service's answer is not understood: {why}",
        hint="see that the URL is that of rlhfless serve, of a release near this client's",
    )


def refusal(status: int, body: bytes) -> RlhflessError:
    """The error that a refusal stands for: its problem document, or, of a proxy on the way, what
    its status says."""
    try:
        problem = json.loads(body)
    except ValueError:
        problem = None
    if isinstance(problem, dict) and ("detail" in problem or "category" in problem):
        error = from_problem(problem)
        if isinstance(error, UnauthenticatedError):
            error.hint = KEY_HINT  # the service's own speaks of headers
        return error
    said = f"the service answers with status {status}"
    if status in AGAIN:
        return TransientError(said)
    if status >= 500:
        return InternalError(said)
    return UserError(said, hint="see that RLHFLESS_URL is the address of rlhfless serve")
