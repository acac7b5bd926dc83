"""Where a run from the command line has its functions: here, on a Ray started for it, or on one
that is there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from controller.deployments import deployments
from controller.ledger import Ledger
from controller.platforms.base import Platform
from controller.platforms.local import LocalPlatform
from controller.run_folder import RunFolder
from rlhfless.spec import JobSpec

PlatformName: TypeAlias = Literal["local", "ray"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """``ray_address``: Ray's dashboard; empty: a Ray of the run's own, on this machine.
    ``ray_serve_url``: of Serve's proxy there, if it is not at port 8000 of the same host."""

    platform: PlatformName = "local"
    ray_address: str = ""
    ray_serve_url: str = ""


HERE = Place()


@contextlib.asynccontextmanager
async def open_platform(
    place: Place, spec: JobSpec, folder: RunFolder, ledger: Ledger
) -> AsyncGenerator[Platform, None]:
    """The platform of a run; with it goes all that it needed."""
    if place.platform == "local":
        async with LocalPlatform(
            deployments(spec), ledger=ledger, folder=folder.file("logs")
        ) as here:
            yield here
        return
    async with _on_ray(place, spec, folder, ledger) as there:
        yield there


@contextlib.asynccontextmanager
async def _on_ray(
    place: Place, spec: JobSpec, folder: RunFolder, ledger: Ledger
) -> AsyncGenerator[Platform, None]:
    from controller.platforms.ray_cluster import RayCluster
    from controller.platforms.ray_jobs import ensure_agent
    from controller.platforms.ray_local import local_ray
    from controller.platforms.ray_serve import RayServePlatform
    from controller.platforms.ray_settings import serve_url, settings_of_run

    wanted = deployments(spec)
    # Of a run's own, so that runs side by side on one cluster do not meet; a resumed one finds what
    # it has left.
    release = "run-" + hashlib.sha256(folder.run_id.encode()).hexdigest()[:10]
    settings = settings_of_run(
        wanted, address=place.ray_address, serve=place.ray_serve_url, release=release
    )
    logs = _logs(folder)
    async with contextlib.AsyncExitStack() as stack:
        if place.ray_address:
            url = serve_url(settings.ray)
            token = secrets.token_urlsafe(24)
            cluster = await stack.enter_async_context(RayCluster(url, release, token))
            stack.push_async_callback(cluster.remove_agent)  # also where we are stopped meanwhile
            await ensure_agent(cluster, place.ray_address)
            logs = ""
        else:
            log = os.path.join(logs, "ray.log")
            cluster = await stack.enter_async_context(local_ray(wanted, log))
        platform = RayServePlatform(
            wanted,
            job=folder.run_id,
            ledger=ledger,
            cluster=cluster,
            settings=settings,
            log_folder=logs,
        )
        yield await stack.enter_async_context(platform)


def _logs(folder: RunFolder) -> str:
    logs = os.path.abspath(folder.file("logs"))
    os.makedirs(logs, exist_ok=True)
    return logs
