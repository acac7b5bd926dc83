"""The controller's hand inside a Ray cluster: a small Serve application that makes the others.

A controller outside the cluster needs neither Ray nor its version: it asks this over HTTP, through
Serve's own proxy. (Ray Client wants both ends of one version and lives as long as its connection;
Serve's REST API replaces all applications of the cluster at once, other people's included.) It
keeps nothing: what runs is Serve's to say.

``python -m functions.ray_serve.agent`` deploys it, which the controller has Ray's job API do;
``functions.ray_serve.agent:app`` is for a Serve config file, of a RayService for one. Either way
the environment has the digest of the token that its callers bear, and the release's name.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import sys
from collections.abc import Awaitable, Callable

import msgspec
import ray
from fastapi import FastAPI, Request, Response
from ray import serve

from functions.ray_serve.applications import delete, deploy, state
from rlhfless import __version__
from rlhfless.errors import RlhflessError, UserError
from rlhfless.ray_apps import (
    RELEASE_VARIABLE,
    SERVE_PORT_VARIABLE,
    TOKEN_DIGEST_VARIABLE,
    RayApp,
    agent_name,
    agent_route,
)
from rlhfless.ray_apps import (
    token_digest as digest_of,
)

_ANYWHERE = "0.0.0.0"  # noqa: S104  (a pod's own address; tokens guard what is there)


def create(release: str, token_digest: str) -> FastAPI:
    """``PUT /apps`` makes one (``?take``: also if another holds it) or changes it, ``DELETE
    /apps/{name}?holder=`` removes it (``?force``: with what it does), ``GET /apps`` tells what
    there is. A change of what another holds is answered 409. Changes are made one at a time, so
    that who holds an application is looked up and acted on in one piece."""
    app = FastAPI(title="rlhfless agent", docs_url=None, redoc_url=None, openapi_url=None)
    one_at_a_time = asyncio.Lock()

    def guarded(
        answer: Callable[[Request], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(digest_of(given), token_digest):
                return Response("the token is missing or wrong", 401)
            try:
                return await answer(request)
            except RlhflessError as error:
                return _json(error.to_problem() | {"status": error.status}, error.status)

        return checked

    async def put(request: Request) -> Response:
        try:
            wanted = msgspec.json.decode(await request.body(), type=RayApp)
        except msgspec.DecodeError as error:
            raise UserError(f"the body is no application: {error}") from error
        take = "take" in request.query_params
        async with one_at_a_time:
            ours = await asyncio.to_thread(deploy, wanted, take=take)
        return Response(status_code=204 if ours else 409)

    async def remove(request: Request) -> Response:
        name, holder = request.path_params["name"], request.query_params.get("holder", "")
        force = "force" in request.query_params
        async with one_at_a_time:
            ours = await asyncio.to_thread(delete, name, holder, force=force)
        return Response(status_code=204 if ours else 409)

    async def tell(_: Request) -> Response:
        return _json(await asyncio.to_thread(state, release))

    async def healthz() -> Response:
        return _json({"version": __version__, "ray": ray.__version__})

    app.add_api_route("/healthz", healthz)
    app.add_route("/apps", guarded(put), methods=["PUT"])
    app.add_route("/apps", guarded(tell), methods=["GET"])
    app.add_route("/apps/{name}", guarded(remove), methods=["DELETE"])
    return app


def _json(answer: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


class _Lazy:
    """An agent's app, made in its replica."""

    def __init__(self, release: str, token_digest: str) -> None:
        self.told = (release, token_digest)
        self.made: FastAPI | None = None

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        self.made = self.made or create(*self.told)
        await self.made(scope, receive, send)


class Agent:
    """The deployment's class; its app does the work."""


def build(release: str, token_digest: str) -> serve.Application:
    deployment = serve.deployment(
        num_replicas=1,
        max_ongoing_requests=1000,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=5,
    )
    return deployment(serve.ingress(_Lazy(release, token_digest))(Agent)).bind()


def told() -> tuple[str, str]:
    """The release and the digest, out of the environment. Raises ``UserError``."""
    release, digest = os.environ.get(RELEASE_VARIABLE, ""), os.environ.get(TOKEN_DIGEST_VARIABLE)
    if not digest:
        raise UserError(f"{TOKEN_DIGEST_VARIABLE} must hold the SHA-256 of the agent's token")
    return release or "rlhfless", digest


def app(_: dict[str, str]) -> serve.Application:
    """For Serve's config files."""
    return build(*told())


def deploy_agent() -> None:
    """Into the cluster that this process is connected to, or is in."""
    release, digest = told()
    serve.run(build(release, digest), name=agent_name(release), route_prefix=agent_route(release))


if __name__ == "__main__":
    try:
        ray.init(logging_level=logging.WARNING)
        # Has no effect where Serve runs already. By itself it would listen on the head's loopback.
        port = int(os.environ.get(SERVE_PORT_VARIABLE, "8000"))
        serve.start(http_options={"host": _ANYWHERE, "port": port})
        deploy_agent()
    except RlhflessError as error:
        sys.exit(error.detail)
