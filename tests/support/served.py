"""A service over real HTTP, in a thread of its own, for tests that look at it from outside."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from controller.redis_server import open_redis
from controller.service.app import create_app
from controller.service.service import Service
from controller.service.settings import Settings

T = TypeVar("T")
START_S = 60.0


class Served:
    """``url``: where it answers. ``do`` runs something with its parts, where it runs."""

    def __init__(self, service: Service, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.service = service
        self.url = url
        self._loop = loop

    def do(self, action: Callable[[Service], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(action(self.service), self._loop).result(START_S)


@contextlib.contextmanager
def served(folder: Path, **settings: Any) -> Iterator[Served]:
    """The API and the page of a replica that drives no job, over a bundled Redis in ``folder``."""
    ready = threading.Event()
    made: list[Served] = []
    servers: list[uvicorn.Server] = []

    async def main() -> None:
        async with open_redis(str(folder / "redis")) as redis:
            chosen = Settings(folder=str(folder), store=str(folder / "store"), **settings)
            service = Service(redis, chosen)
            listening = socket.create_server(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            config = uvicorn.Config(
                create_app(service), log_level="error", timeout_graceful_shutdown=1
            )
            servers.append(uvicorn.Server(config))
            made.append(Served(service, url, asyncio.get_running_loop()))
            ready.set()
            await servers[0].serve([listening])

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="served", daemon=True)
    thread.start()
    assert ready.wait(START_S), "the service has not started"
    try:
        yield made[0]
    finally:
        servers[0].should_exit = True
        thread.join(START_S)
