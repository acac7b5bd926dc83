"""A function as a Ray Serve deployment: the same ASGI app that ``functions.host`` serves.

Calls come through Serve. What must reach this very replica (a change to a running call, the notice
that it shall hand its work back) comes to a port of its own on its node's address, which each
answer names in a header beside the replica's id: ``<id>@<address>:<port>``. The same token guards
both ways.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import ray
import ray._private.worker
import uvicorn
from fastapi import FastAPI
from ray import serve
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from functions.host import (
    DRAIN_GRACE_S,
    HostConfig,
    Server,
    listen,
    load,
    set_threads,
)
from functions.ranks import ALONE, Ranks
from functions.ray_serve import followers
from functions.shell import Shell, create_app
from rlhfless import lifeline
from rlhfless.messages import INSTANCE_HEADER
from rlhfless.ray_apps import RayFunction, Resources

_FLUSH_S = 0.5
"""In which the last frames of a replica that leaves get through Serve's proxy."""
_log = logging.getLogger("functions.ray_serve")


class _Here:
    """The app of this process. Serve copies what it is given to serve into each replica, where the
    app is made only when the function has been loaded."""

    app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # of what is mounted here nothing waits for it
            return
        assert _Here.app is not None, "a replica serves after its constructor"
        await _Here.app(scope, receive, send)


class FunctionReplica:
    """``told``: JSON of a ``RayFunction``; ``each``: of the ``Resources`` of a worker."""

    def __init__(self, told: bytes, each: bytes) -> None:
        function = msgspec.json.decode(told, type=RayFunction)
        loop = asyncio.get_running_loop()
        self.id = serve.get_replica_context().replica_id.unique_id
        if function.log_folder:
            _write_to(os.path.join(function.log_folder, f"{function.function}-{self.id}.log"))
        logging.getLogger("functions").setLevel(logging.INFO)
        config = HostConfig(
            function=function.function,
            token=function.token,
            app=function.app,
            threads=function.threads,
            accelerator=function.accelerator,
            workdir=os.path.join(lifeline.own_folder(), "work"),
            engine=msgspec.json.encode(function.engine).decode(),
            concurrency=function.concurrency,
            workers=function.workers,
        )
        set_threads(config.threads)
        _on_sigterm(loop, self._leave)  # a group that breaks asks for its end so, too
        ranks = ALONE
        if function.workers > 1:

            def gone() -> None:
                if _Here.app is None:  # the constructor waits for them, and would for minutes
                    os._exit(1)
                loop.call_soon_threadsafe(self._followers_gone)

            ranks = _leading(function, each, gone)
        loaded = load(config, ranks)
        app = create_app(config.function, loaded, config.token, concurrency=config.concurrency)
        self.shell: Shell = app.state.shell
        address = self._listen(app, config)
        _Here.app = _naming(app, f"{self.id}@{address}")

    def _followers_gone(self) -> None:
        """An instance whose group is not whole is none."""
        self._leaving = asyncio.get_running_loop().create_task(self._leave())

    async def _leave(self) -> None:
        """What SIGTERM asks for: hand back what is being worked on, and end. Serve starts another
        replica where there is demand."""
        await self.shell.drain(DRAIN_GRACE_S)
        await asyncio.sleep(_FLUSH_S)
        os._exit(0)

    def _listen(self, app: FastAPI, config: HostConfig) -> str:
        """Serve the app at this node's address, too; where."""
        ip = ray.util.get_node_ip_address()
        listener = listen(msgspec.structs.replace(config, host=ip, port=0))
        settings = uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False, lifespan="off", ws="none"
        )
        self._direct = asyncio.get_running_loop().create_task(
            Server(settings).serve(sockets=[listener])
        )
        host = f"[{ip}]" if ":" in ip else ip
        return f"{host}:{listener.getsockname()[1]}"

    def reconfigure(self, _: dict[str, Any]) -> None:
        """Who holds the application is in its user config; it changes nothing here."""

    async def check_health(self) -> None:
        if self._direct.done():
            raise RuntimeError("the replica's own port is closed")


DEPLOYMENT = serve.deployment(serve.ingress(_Here())(FunctionReplica))


def _leading(function: RayFunction, each: bytes, gone: Callable[[], Any]) -> Ranks:
    """This worker's place, having asked Ray Train for the others."""
    host = ray.util.get_node_ip_address()
    listener = socket.create_server(("", 0))
    port = listener.getsockname()[1]
    meeting = followers.Meeting(host, port, function.workers)
    followers.start(function, msgspec.json.decode(each, type=Resources), meeting, gone)
    return Ranks(
        size=function.workers, host=host, port=port, token=function.token, listener=listener
    )


def _on_sigterm(
    loop: asyncio.AbstractEventLoop, leave: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Ray's workers wait at SIGTERM until their tasks have ended, which a rollout does in minutes.

    Only the main thread may set a signal's handler, and actors never run there; so this takes the
    place of what Ray's own handler calls. A Ray that has no such thing keeps its ways.
    """
    name = "raise_sys_exit_with_custom_error_message"
    if not hasattr(ray._private.worker, name):
        _log.warning("this Ray does not tell its workers of SIGTERM")
        return
    leaving: list[asyncio.Task[None]] = []

    def begin() -> None:
        if not leaving:
            leaving.append(loop.create_task(leave()))

    def told(*_: Any, **__: Any) -> None:
        loop.call_soon_threadsafe(begin)

    setattr(ray._private.worker, name, told)


def _write_to(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger("functions").addHandler(handler)


def _naming(app: ASGIApp, name: str) -> ASGIApp:
    """The app, with the replica's name in the header of each answer."""
    header = (INSTANCE_HEADER.encode(), name.encode())

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), header]}
            await send(message)

        await app(scope, receive, sending)

    return named
