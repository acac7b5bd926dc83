"""Getting the agent into a Ray cluster, by Ray's job API (the one behind ``ray job submit``).

HTTP again: no Ray here. Where the agent answers already, knows our token and is of this release,
nothing is asked of the job API, which then need not be reachable at all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from typing import Any
from urllib.parse import urlsplit

import httpx

import rlhfless
from controller.platforms.ray_cluster import RayCluster
from rlhfless.errors import CapacityError, InternalError, RlhflessError, TransientError, UserError
from rlhfless.ray_apps import (
    RELEASE_VARIABLE,
    SERVE_PORT_VARIABLE,
    TOKEN_DIGEST_VARIABLE,
    token_digest,
)

RAY_TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105  (the name of a variable, Ray's own)
LEAST_RAY = (2, 49)
"""The first with ``serve.run_many``."""
DEPLOY_S = 300.0
_POLL_S = 0.5
_ANSWER_S = 30.0
_VISIBLE_S = 60.0
_LOG_LINES = 15
_log = logging.getLogger(__name__)


async def ensure_agent(cluster: RayCluster, address: str) -> None:
    """Raises ``UserError`` where the cluster cannot be ours: no agent and no way to start one, too
    old a Ray, another rlhfless; ``TransientError`` where nobody answers; ``CapacityError`` where it
    does not get the agent up."""
    version = await cluster.version()
    if version == rlhfless.__version__ and await cluster.admits():
        return
    if not address:
        if version is None:
            raise UserError(
                f"no agent of rlhfless answers at {cluster.serve_url}",
                param="ray.serveUrl",
                hint="set ray.address to Ray's dashboard, so that it can be started, or add "
                "functions.ray_serve.agent:app to your Serve config",
            )
        await _same(cluster)
        raise UserError("the agent in the Ray cluster asks for another token")
    await _check_ray(cluster.client, address)
    await _submit(cluster, address)
    try:
        async with asyncio.timeout(_VISIBLE_S):  # Serve's proxies learn of it a moment later
            while await cluster.version() is None:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        detail = f"our agent runs on Ray, and nobody answers for it at {cluster.serve_url}"
        hint = "is that Serve's HTTP proxy? ray.serveUrl (--ray-serve-url) says where it is"
        raise CapacityError(detail, hint=hint) from error
    await _same(cluster)


async def _same(cluster: RayCluster) -> None:
    version = await cluster.version()
    if version is not None and version != rlhfless.__version__:
        raise UserError(
            f"Ray's nodes have rlhfless {version}, and this is {rlhfless.__version__}",
            hint="give both the same release; the images are built from one source",
        )


async def _check_ray(client: httpx.AsyncClient, address: str) -> None:
    told = await _ask(client, "GET", f"{address}/api/version")
    version = str(told.get("ray_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < LEAST_RAY:
        least = ".".join(map(str, LEAST_RAY))
        raise UserError(f"the cluster has Ray {version or 'unknown'}; {least} is the least we need")


async def _submit(cluster: RayCluster, address: str) -> None:
    name = f"rlhfless-agent-{cluster.release}-{uuid.uuid4().hex[:8]}"
    job = {
        "entrypoint": "python -m functions.ray_serve.agent",
        "submission_id": name,
        "entrypoint_num_cpus": 0,
        "runtime_env": {
            "env_vars": {
                RELEASE_VARIABLE: cluster.release,
                TOKEN_DIGEST_VARIABLE: token_digest(cluster.token),
                SERVE_PORT_VARIABLE: str(urlsplit(cluster.serve_url).port or 8000),
            }
        },
    }
    await _post(cluster.client, f"{address}/api/jobs/", job)
    try:
        async with asyncio.timeout(DEPLOY_S):
            while True:
                told = await _ask(cluster.client, "GET", f"{address}/api/jobs/{name}")
                status = told.get("status")
                if status == "SUCCEEDED":
                    return
                if status in ("FAILED", "STOPPED"):
                    logs = await _ask(cluster.client, "GET", f"{address}/api/jobs/{name}/logs")
                    raise _failure(str(told.get("message", "")), str(logs.get("logs", "")))
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        detail = f"Ray did not run the job {name}, which starts our agent, in {DEPLOY_S:g} s"
        raise CapacityError(detail, hint=f"see the job at {address}") from error


async def _post(client: httpx.AsyncClient, url: str, job: dict[str, Any]) -> None:
    """A head that has just come up takes no jobs yet, and says so."""
    give_up_s = asyncio.get_running_loop().time() + _VISIBLE_S
    while True:
        try:
            await _ask(client, "POST", url, job)
            return
        except TransientError:
            if asyncio.get_running_loop().time() > give_up_s:
                raise
        await asyncio.sleep(2 * _POLL_S)


def _failure(message: str, logs: str) -> RlhflessError:
    if "No module named 'functions" in logs:
        return UserError(
            "Ray's nodes have no rlhfless",
            hint="their image must have it, with the extras functions and ray",
        )
    _log.warning("the agent's job:\n%s", "\n".join(logs.splitlines()[-_LOG_LINES:]))
    last = next((line for line in reversed(logs.splitlines()) if line.strip()), message)
    return InternalError(f"the agent cannot be started on Ray: {last}")


def _ray_token() -> str:
    """Ray's own, from where its own clients take it; empty: there is none."""
    if token := os.environ.get(RAY_TOKEN_VARIABLE, ""):
        return token
    path = os.environ.get("RAY_AUTH_TOKEN_PATH", "") or os.path.expanduser("~/.ray/auth_token")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


async def _ask(
    client: httpx.AsyncClient, method: str, url: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    token = await asyncio.to_thread(_ray_token)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = await client.request(method, url, json=body, headers=headers, timeout=_ANSWER_S)
    except httpx.TransportError as error:
        raise TransientError(
            f"nobody answers as Ray's dashboard at {url.partition('/api')[0]}: "
            f"{str(error) or type(error).__name__}",
            hint="it is at the head's port 8265, where ray[serve] is installed there",
        ) from error
    if answer.status_code in (401, 403):
        raise UserError(
            "Ray asks for its token, and ours is missing or another",
            hint=f"set {RAY_TOKEN_VARIABLE} to what `ray get-auth-token` says there",
        )
    try:
        told = answer.json()
    except ValueError:
        told = None
    if answer.status_code != 200 or not isinstance(told, dict):
        raise TransientError(f"{url} answered {answer.status_code}: {answer.text[-300:]}")
    return told
