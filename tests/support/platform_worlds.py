"""The worlds that the platform contract is shown in: one opener for each platform.

A platform is opened over a world of its own: ``app`` of ``tests.apps.probe`` is what instances run;
in a world that is ``full`` none can be started. After it is closed, its opener finds nothing left.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.ledger import Ledger
from controller.platforms.base import Deployment, Platform
from controller.platforms.local import LocalPlatform
from rlhfless.errors import InternalError
from simulator import clock
from tests.support import ray_platforms
from tests.support.knative_cluster import NOWHERE
from tests.support.knative_platforms import settings as knative_settings
from tests.support.knative_platforms import world
from tests.support.processes import home_of, lives, options
from tests.support.simulated_probes import SimulatedProbes


@dataclass(frozen=True)
class Under:
    """A platform under test, what it books, and what the world can do to its instances by id.

    Frames say who served a call: by the process's id where there are processes, else by a number of
    the instance. ``lives``: whether who is called so is still there; ``shares_files``: whether
    instances see this machine's files; ``steers``: whether running calls can be changed.
    """

    platform: Platform
    ledger: Ledger
    preempt: Callable[[str], None]
    kill: Callable[[str], None]
    lives: Callable[[int], bool] = lives
    shares_files: bool = True
    steers: bool = True

    def count(self, state: str) -> int:
        return sum(i.state == state for i in self.platform.instances())


Start = Callable[..., AbstractAsyncContextManager[Under]]


@dataclass(frozen=True)
class Open:
    """Called with deployments it opens a platform with these; a case goes through ``run``, on the
    platform's clock."""

    start: Start
    run: Callable[[Coroutine[Any, Any, None]], None]
    folder: Path

    def __call__(
        self, *deployments: Deployment, app: str = "create", full: bool = False
    ) -> AbstractAsyncContextManager[Under]:
        return self.start(self.folder, *deployments, app=app, full=full)


@contextlib.asynccontextmanager
async def local(
    folder: Path, *deployments: Deployment, app: str, full: bool
) -> AsyncGenerator[Under, None]:
    ledger = Ledger()
    told = options(app=app, zygote=not full)
    platform = LocalPlatform(deployments, ledger=ledger, folder=str(folder / "logs"), options=told)

    def kill(name: str) -> None:
        for pool in platform._pools.values():
            if name in pool.instances:
                process = pool.instances[name].process
                assert process is not None
                process.send(9)

    async with platform:
        home = home_of(platform)
        with pytest.MonkeyPatch.context() as patching:
            if full:
                patching.setattr(asyncio, "create_subprocess_exec", _no_process)
            yield Under(platform, ledger, platform.preempt, kill)
    assert not os.path.exists(home), "closing left something"  # noqa: ASYNC240


async def _no_process(*_: object, **__: object) -> None:
    """As the kernel answers where the limit of processes is reached."""
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


@contextlib.asynccontextmanager
async def knative(
    folder: Path, *deployments: Deployment, app: str, full: bool
) -> AsyncGenerator[Under, None]:
    told = knative_settings(
        progressDeadline="1s" if full else "20s", nodes=NOWHERE if full else None
    )
    async with world(folder, app=app, told=told) as place:
        ledger = Ledger()
        async with place.platform(*deployments, ledger=ledger) as platform:
            yield Under(
                platform,
                ledger,
                place.preempt,
                place.kill,
                place.lives,
                shares_files=place.standin is not None,
                steers=place.settings.knative.direct_steering,
            )
        assert await place.services() == [], "closing left something"
        async with asyncio.timeout(60):
            await place.no_pods()


@contextlib.asynccontextmanager
async def simulated(
    folder: Path,
    *deployments: Deployment,
    app: str,
    full: bool,
) -> AsyncGenerator[Under, None]:
    if full:
        pytest.skip("simulated functions wait for accelerators; what never fits is not begun")
    ledger = Ledger()
    platform = SimulatedProbes(deployments, ledger, app)
    told_before = (InternalError,) if app == "broken" else ()
    try:
        yield Under(platform, ledger, platform.preempt, platform.crash, platform.lives)
    finally:
        with contextlib.suppress(*told_before):
            await platform.close()  # tells once more what went wrong in a life
    assert platform.instances() == (), "closing left something"


@contextlib.asynccontextmanager
async def ray(
    folder: Path, *deployments: Deployment, app: str, full: bool
) -> AsyncGenerator[Under, None]:
    ledger = Ledger()
    told = ray_platforms.settings(deployments, cpus=1000.0 if full else 1.0)
    opening = ray_platforms.platform_on(*deployments, app=app, ledger=ledger, told=told)
    async with opening as platform:

        def send(name: str, number: signal.Signals) -> None:
            replica = platform._replicas.get(name)
            assert replica is not None
            os.kill(replica.pid, number)

        yield Under(
            platform,
            ledger,
            preempt=lambda name: send(name, signal.SIGTERM),
            kill=lambda name: send(name, signal.SIGKILL),
        )
    async with ray_platforms.shared().cluster() as cluster:
        assert not (await cluster.state()).apps, "closing left something"


WORLDS: dict[str, tuple[Start, Callable[[Coroutine[Any, Any, None]], None]]] = {
    "local": (local, asyncio.run),
    "knative": (knative, asyncio.run),
    "simulated": (simulated, clock.run),
    "ray": (ray, asyncio.run),
}
