"""The outermost layer of the app: what is done for every request, whatever answers it.

A request id (``X-Request-Id``, the caller's if it is a plain one), a bound on its body, one line of
JSON in the access log, its numbers for Prometheus, an entry in the audit log if it belongs there,
and an answer when a defect of ours left none. Plain ASGI, which passes each message on as it comes:
streams stay streams.

The access log is the logger ``controller.service.access``, at the level info; it has no query
strings, headers or bodies.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.service.audit import Audit, AuditEntry, is_audited, masked, new_request_id
from controller.service.body_limit import BodyLimit
from controller.service.http import problem
from controller.service.keys import ApiKey
from controller.service.metrics import ServiceMetrics
from rlhfless.errors import InternalError, RlhflessError

AUDIT_TIMEOUT_S = 1.0
"""So long an answer waits for its entry in the audit log at most."""
NO_ROUTE = "none"
_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")

_log = logging.getLogger(__name__)
_access = logging.getLogger("controller.service.access")


def write_access_log(level: int) -> None:
    """Lines of the access log go to standard error as they are, JSON and nothing else, if what is
    of the level INFO is to be said."""
    _access.setLevel(level)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    _access.handlers = [handler]
    _access.propagate = False


@dataclass
class _Request:
    """A request under way. ``status``: 499 as long as nobody has answered."""

    scope: Scope
    id: str
    start_s: float
    status: int = 499
    answered_s: float | None = None
    sent_bytes: int = 0

    @property
    def method(self) -> str:
        return str(self.scope["method"])[:16]

    @property
    def route(self) -> str:
        """The route's template."""
        return str(getattr(self.scope.get("route"), "path", NO_ROUTE))

    @property
    def key(self) -> ApiKey | None:
        """Whose key it came with, once that is known (``controller.service.http.Needs``)."""
        key: ApiKey | None = self.scope["state"].get("key")
        return key


class Edge:
    """``limit`` bounds bodies."""

    def __init__(
        self, app: ASGIApp, audit: Audit, metrics: ServiceMetrics, limit: BodyLimit
    ) -> None:
        self._app = app
        self._audit = audit
        self._metrics = metrics
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        request = _Request(scope, _request_id(scope), asyncio.get_running_loop().time())

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._answering(request, message)
            elif message["type"] == "http.response.body":
                request.sent_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._limit(self._app, scope, receive, send_on)
        except ClientDisconnect:
            pass  # the caller left before it had sent all of the body; nobody can be answered
        except Exception:  # the boundary of a request
            _log.exception("request %s met a defect", request.id)
            if request.answered_s is None:
                error = InternalError(
                    "something went wrong on our side",
                    hint=f"tell the operator of the service the request id {request.id}",
                )
                await problem(error)(scope, receive, send_on)
        finally:
            self._ended(request)

    async def _answering(self, request: _Request, start: Message) -> None:
        request.status = start["status"]
        request.answered_s = asyncio.get_running_loop().time() - request.start_s
        start["headers"] = [*start.get("headers", ()), (b"x-request-id", request.id.encode())]
        if is_audited(request.method, request.status, known=request.key is not None):
            await self._write(request)

    async def _write(self, request: _Request) -> None:
        key = request.key
        entry = AuditEntry(
            tenant=None if key is None else key.tenant,
            key=None if key is None else key.id,
            action=f"{request.method} {request.route}",
            target=masked(request.scope["path"]),
            status=request.status,
            request=request.id,
        )
        try:
            async with asyncio.timeout(AUDIT_TIMEOUT_S):
                await self._audit.write(entry)
        except (RlhflessError, TimeoutError) as error:
            self._metrics.audit_lost()
            said = getattr(error, "detail", "no answer in time")
            _log.error("the audit log lost %s: %s", entry, said)

    def _ended(self, request: _Request) -> None:
        self._metrics.answered(request.method, request.route, request.status, request.answered_s)
        if not _access.isEnabledFor(logging.INFO):
            return
        key, client = request.key, request.scope.get("client")
        elapsed_s = asyncio.get_running_loop().time() - request.start_s
        line: dict[str, Any] = {
            "at": round(time.time(), 3),
            "request": request.id,
            "client": client[0] if client else None,
            "method": request.method,
            "route": request.route,
            "path": masked(request.scope["path"]),
            "status": request.status,
            "seconds": round(elapsed_s, 6),
            "bytes": request.sent_bytes,
            "tenant": None if key is None else key.tenant,
            "key": None if key is None else key.id,
        }
        _access.info(json.dumps(line))


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given = value.decode("latin-1")
            if _PLAIN_ID.fullmatch(given) and masked(given) == given:
                return str(given)
    return new_request_id()
