"""HTTP/1.1 with as little work as possible: whoever makes load must not be what is measured.

A request costs some 0.1 ms of CPU here, a tenth of what it costs a client library. No redirects, no
compression, one answer at a time on a connection.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
IDLE_S = 10.0
_LINE_LIMIT = 1 << 22


@dataclass(frozen=True)
class Site:
    """Where requests go, and the key they bear."""

    host: str
    port: int
    key: str = ""

    def head(self, method: str, path: str, *more: str, body: bytes = b"") -> bytes:
        """A request, ready to be sent."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}:{self.port}", *more]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        if method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> Any:
        """Raises ``AssertionError`` for an answer that is no success."""
        assert 200 <= self.status < 300, (self.status, self.body)
        return json.loads(self.body)


class Connection:
    """``await Connection.to(site)``; then one ``ask`` after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, site: Site) -> Connection:
        return cls(*await asyncio.open_connection(site.host, site.port, limit=_LINE_LIMIT))

    async def ask(self, request: bytes) -> Answer:
        self.send(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await self._reader.readexactly(int(length.group(1))) if length else b""
        return Answer(int(head[9:12]), body)

    def send(self, request: bytes) -> None:
        self._writer.write(request)

    async def stream(self, request: bytes) -> AsyncGenerator[bytes]:
        """The blocks of an answer of Server-Sent Events, each to its blank line; ends with the
        answer. Raises ``AssertionError`` if it is no success."""
        self.send(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head[9:12] == b"200", head
        text = b""
        while length := int(await self._reader.readuntil(b"\r\n"), 16):
            text += (await self._reader.readexactly(length + 2))[:-2]
            *blocks, text = text.split(b"\n\n")
            for block in blocks:
                yield block

    def close(self) -> None:
        self._writer.close()


class Pool:
    """Connections that are used again, unless they were idle for so long that the server may be
    about to close them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._free: list[tuple[Connection, float]] = []

    async def ask(self, request: bytes) -> Answer:
        connection = self._idle() or await Connection.to(self.site)
        answer = await connection.ask(request)
        self._free.append((connection, time.monotonic()))
        return answer

    def _idle(self) -> Connection | None:
        if self._free and self._free[-1][1] < time.monotonic() - IDLE_S:
            self.close()
        return self._free.pop()[0] if self._free else None

    async def get(self, path: str) -> Any:
        return (await self.ask(self.site.head("GET", path))).json()

    async def post(self, path: str, *more: str, body: bytes = b"") -> Any:
        return (await self.ask(self.site.head("POST", path, *more, body=body))).json()

    def close(self) -> None:
        for connection, _ in self._free:
            connection.close()
        self._free.clear()
