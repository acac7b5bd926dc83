"""Connections for many streams: places are taken, given back, and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from controller.platforms import http_pools
from controller.platforms.http_pools import HttpPools


@asynccontextmanager
async def serving() -> AsyncGenerator[tuple[str, list[int]], None]:
    """A server that begins each answer and ends it when told; who connected (ports)."""
    connections: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer.get_extra_info("peername")[1])
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
                await writer.drain()
                await asyncio.sleep(0.01)
                writer.write(b"cd")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", connections
    finally:
        server.close()


def test_pools_are_made_as_streams_need_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pools, "STREAMS", 2)

    async def run() -> None:
        pools = HttpPools()
        async with serving() as (url, _), httpx.AsyncClient(transport=pools) as client:
            async with AsyncExitStack() as stack:
                opened = [
                    await stack.enter_async_context(client.stream("GET", url)) for _ in range(5)
                ]
                assert pools.sizes == [2, 2, 1]
                await opened[0].aread()  # to its end: its place is free
                assert pools.sizes == [1, 2, 1]
                await stack.enter_async_context(client.stream("GET", url))
                assert pools.sizes == [2, 2, 1]
            assert pools.sizes == [0, 0, 0]  # the others were broken off

    asyncio.run(run())


def test_few_calls_share_a_connection() -> None:
    async def run() -> None:
        pools = HttpPools()
        async with serving() as (url, connections), httpx.AsyncClient(transport=pools) as client:
            for _ in range(5):
                assert (await client.get(url)).content == b"abcd"
            assert len(connections) == 1
            assert pools.sizes == [0]

    asyncio.run(run())


def test_a_request_that_fails_gives_its_place_back() -> None:
    async def run() -> None:
        pools = HttpPools()
        async with serving() as (url, _):
            pass
        async with httpx.AsyncClient(transport=pools) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(url)
        assert pools.sizes == [0]

    asyncio.run(run())


def test_a_request_that_is_cancelled_gives_its_place_back() -> None:
    async def run() -> None:
        pools = HttpPools()

        gone = asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()  # until the other side goes
            writer.close()
            gone.set()

        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(transport=pools) as client:
            asked = asyncio.create_task(client.get(url))
            while pools.sizes != [1]:  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.001)
            asked.cancel()
            await asyncio.wait({asked})
            assert pools.sizes == [0]
        await gone.wait()
        server.close()

    asyncio.run(run())
