"""A replica of the service: the REST API and the driver, over one Redis and one object store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass

import uvicorn

from controller.collecting import collect_rarely
from controller.platforms.local_host import LocalOptions
from controller.redis_server import beside, open_redis
from controller.service.accounting import Settling
from controller.service.app import create_app
from controller.service.driver import Driver
from controller.service.hosts import open_host
from controller.service.lease import Leases
from controller.service.service import Estimator, Service
from controller.service.settings import Settings
from controller.service.tidying import remove_old_logs, tidying
from controller.service.webhook_sender import WebhookSender
from rlhfless.errors import UnauthenticatedError, UserError, of_os_error

GRACE_S = 5
"""Requests that are being answered when the replica is to end have so long."""
KEEP_ALIVE_S = 30
"""An idle connection is closed after so long."""
NICENESS = 10
"""Of functions: a request is a few milliseconds of work, and they would let it wait for ten times
as long where cores are few."""
MAX_HEADER_BYTES = 64 << 10
"""Of the head of a request; what is longer is refused."""
ADMIN_KEY = "admin-key"
FIRST_TENANT = "default"


@dataclass(frozen=True)
class Serving:
    """``admin_key``: of the first tenant, where this replica knows one."""

    url: str
    admin_key: str | None


async def serve(
    settings: Settings,
    host: str,
    port: int,
    redis_url: str | None,
    ready: Callable[[Serving], None],
    estimator: Estimator | None = None,
) -> None:
    """Until it is cancelled. ``port`` 0: any that is free. ``ready`` is told where it serves.
    ``estimator``: see ``Service``."""
    collect_rarely()
    listening = listen(host, port)
    machine = socket.gethostname()
    name = f"{machine}-{os.getpid()}-{secrets.token_hex(3)}"
    with contextlib.closing(listening):
        await asyncio.to_thread(remove_old_logs, settings.file("logs"), machine, name)
        async with (
            open_redis(settings.file("redis"), redis_url, restart=True) as redis,
            beside(redis) as apart,
            open_host(
                settings.platform_file, settings.file("logs", name), LocalOptions(niceness=NICENESS)
            ) as functions,
        ):
            service = Service(redis, settings, estimator)
            admin_key = await _first_key(service, own=redis_url is None)
            leases = Leases(apart, name)  # renewed in time, however much is asked of the API
            driver = Driver(service, functions, leases)
            webhooks = WebhookSender(redis, service.registry, service.events, leases, settings)
            async with asyncio.TaskGroup() as group:
                driving = group.create_task(driver.run(), name="driver")
                settling = group.create_task(Settling(service, leases).run(), name="settle")
                sending = group.create_task(webhooks.run(), name="webhooks")
                tidies = group.create_task(tidying(service, functions), name="tidy")
                async with _answering(service, listening):
                    ready(Serving(_url(listening), admin_key))
                    try:
                        await asyncio.wait({driving})
                    finally:
                        service.closing = True
                        driving.cancel()
                        settling.cancel()
                        sending.cancel()
                        tidies.cancel()


@contextlib.asynccontextmanager
async def _answering(service: Service, listening: socket.socket) -> AsyncIterator[None]:
    """The API is served while the block runs."""
    config = uvicorn.Config(
        create_app(service),
        lifespan="off",
        http="h11",  # the other parser bounds no headers
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        log_config=None,
        access_log=False,  # the app's edge writes one
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listening]), name="api")
        try:
            yield
        finally:
            server.should_exit = True
            await asyncio.wait({serving})


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """They are for the whole replica to deal with."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ``UserError`` if the address cannot be had."""
    try:
        listening = socket.create_server((host, port), backlog=2048)
    except OSError as error:
        told = of_os_error(f"cannot listen on {host}:{port}", error)
        told.hint = "is another service running there? choose another with --port"
        raise UserError(told.detail, hint=told.hint) from error
    # Connections inherit it. asyncio would set it on sockets that it had made itself; without it an
    # answer's second piece waits for the client to acknowledge the first, which takes it 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{host}:{port}"


async def _first_key(service: Service, *, own: bool) -> str | None:
    """The admin key of a service of one's own, made when it is started first and kept in its
    folder. A service with a Redis of its operator's has keys by ``rlhfless keys``."""
    if not own:
        return None
    path = service.settings.file(ADMIN_KEY)
    with contextlib.suppress(FileNotFoundError, UnauthenticatedError):
        kept = await asyncio.to_thread(_read, path)
        await service.keys.authenticate(kept)
        return kept
    _, text = await service.keys.create(FIRST_TENANT, "first key", "admin")
    await asyncio.to_thread(_write, path, text)
    return text


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def _write(path: str, text: str) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise of_os_error(f"cannot write {path}", error) from error
