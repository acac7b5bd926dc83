"""TCP connections that can be cut: a link of a replica to Redis, and a balancer before replicas."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Literal

CHUNK_BYTES = 1 << 16

State = Literal["up", "refusing", "silent"]


class Link:
    """``async with Link(ports) as link``: what connects to ``link.port`` reaches one of ``ports``
    that answers, chosen at random.

    ``refusing``: connections are reset, and so are new ones, as where a process is gone.
    ``silent``: nothing arrives and nobody is told, as where packets are dropped; what was sent
    arrives once the link is up again, unless its ends have given up.
    """

    def __init__(self, ports: Sequence[int], rng: random.Random | None = None) -> None:
        self._ports = list(ports)
        self._rng = rng or random.Random(0)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Link:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, backlog=512)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._flowing.set()
        self._refusing = True
        while self._tasks:
            self._reset()
            await asyncio.wait(self._tasks, timeout=0.1)

    def set(self, state: State) -> None:
        self._refusing = state == "refusing"
        if state == "silent":
            self._flowing.clear()
        else:
            self._flowing.set()
        if self._refusing:
            self._reset()

    def _reset(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        try:
            if self._refusing:
                return
            await self._flowing.wait()
            if (other := await self._connect()) is not None:
                await self._joined(reader, writer, *other)
        finally:
            writer.transport.abort()
            self._open.discard(writer)
            self._tasks.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for port in self._rng.sample(self._ports, len(self._ports)):
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return None

    async def _joined(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        self._open.add(far_writer)
        there = asyncio.create_task(self._pump(reader, far_writer))
        back = asyncio.create_task(self._pump(far_reader, writer))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (there, back):
                one.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            far_writer.transport.abort()
            self._open.discard(far_writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
