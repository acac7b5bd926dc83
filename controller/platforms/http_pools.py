"""HTTP connections for a thousand streams at once.

An ``httpcore`` pool looks at each of its connections whenever a request begins or ends, so that a
thousand calls of a step on one pool take a million looks, two seconds of CPU. Here pools are small,
and there are as many as the open streams need: few streams share one pool, as they always did.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx

STREAMS = 32
"""Of one pool at a time."""
KEPT = 32
"""Idle connections of one pool."""


@dataclass
class _Pool:
    transport: httpx.AsyncHTTPTransport
    streams: int = 0


class HttpPools(httpx.AsyncBaseTransport):
    """The pool with room that was made first takes a request; without any, a new one."""

    def __init__(self) -> None:
        self._pools: list[_Pool] = []

    @property
    def sizes(self) -> list[int]:
        """Streams of each pool."""
        return [pool.streams for pool in self._pools]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        pool = self._with_room()
        pool.streams += 1
        try:
            response = await pool.transport.handle_async_request(request)
        except BaseException:
            pool.streams -= 1
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Stream(response.stream, pool)
        return response

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.transport.aclose()

    def _with_room(self) -> _Pool:
        for pool in self._pools:
            if pool.streams < STREAMS:
                return pool
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=KEPT)
        self._pools.append(_Pool(httpx.AsyncHTTPTransport(limits=limits, trust_env=False)))
        return self._pools[-1]


class _Stream(httpx.AsyncByteStream):
    """The body of an answer, which gives its place back when it is closed."""

    def __init__(self, inner: httpx.AsyncByteStream, pool: _Pool) -> None:
        self._inner = inner
        self._pool: _Pool | None = pool

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._inner.__aiter__()

    async def aclose(self) -> None:
        if self._pool is not None:
            self._pool.streams -= 1
            self._pool = None
        await self._inner.aclose()
