"""One Ray for all tests of a process, with probes (``tests/apps/probe.py``) in its replicas.

Ray takes ten seconds to start, so it is started once, in a thread with a loop of its own, and ended
with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.ray_cluster import RayCluster
from controller.platforms.ray_local import local_ray
from controller.platforms.ray_serve import RayServePlatform
from controller.platforms.ray_settings import RayResources, RaySettings, settings_of_run
from rlhfless.messages import FUNCTION_NAMES

NUM_CPUS = 12


@dataclass(frozen=True)
class SharedRay:
    serve_url: str
    release: str
    token: str

    def cluster(self) -> RayCluster:
        return RayCluster(self.serve_url, self.release, self.token, elastic=False)


@contextlib.contextmanager
def running(folder: Path, num_cpus: int = NUM_CPUS) -> Generator[SharedRay, None, None]:
    """Ray, kept by a thread: each test has a loop of its own."""
    loop = asyncio.new_event_loop()
    up, over = threading.Event(), asyncio.Event()
    found: list[SharedRay] = []
    failed: list[BaseException] = []

    async def keep() -> None:
        try:
            async with local_ray([], str(folder / "ray.log"), num_cpus) as cluster:
                found.append(SharedRay(cluster.serve_url, cluster.release, cluster.token))
                up.set()
                await over.wait()
        except BaseException as error:  # told to the test that waits
            failed.append(error)
        finally:
            up.set()

    thread = threading.Thread(target=loop.run_until_complete, args=(keep(),), name="ray")
    thread.start()
    up.wait()
    try:
        if failed:
            raise failed[0]
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


_shared: list[SharedRay] = []


def shared() -> SharedRay:
    """The one that the fixture ``shared_ray`` has started."""
    return _shared[0]


@contextlib.contextmanager
def sharing(folder: Path) -> Generator[SharedRay, None, None]:
    with running(folder) as started:
        _shared.append(started)
        try:
            yield started
        finally:
            _shared.clear()


def settings(deployments: Sequence[Deployment], cpus: float = 1.0) -> RaySettings:
    told = settings_of_run(deployments, address="", serve="", release="run")
    functions = {
        name: replicas.model_copy(update={"resources": RayResources(cpus=cpus)})
        for name, replicas in told.functions.items()
    }
    return told.model_copy(update={"functions": functions})


@contextlib.asynccontextmanager
async def platform_on(
    *deployments: Deployment,
    app: str | None = "create",
    job: str = "job-1",
    ledger: Ledger | None = None,
    told: RaySettings | None = None,
    log_folder: str = "",
) -> AsyncGenerator[RayServePlatform, None]:
    """On the shared one. ``app`` of ``tests.apps.probe``; None: the functions' own."""
    given = deployments or (Deployment("rollout"),)
    apps = dict.fromkeys(FUNCTION_NAMES, f"tests.apps.probe:{app}") if app else {}
    async with (
        shared().cluster() as cluster,
        RayServePlatform(
            given,
            job=job,
            ledger=ledger or Ledger(),
            cluster=cluster,
            settings=told or settings(given),
            apps=apps,
            log_folder=log_folder,
        ) as platform,
    ):
        yield platform
