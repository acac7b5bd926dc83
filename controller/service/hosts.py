"""Where a replica's jobs run their functions: processes of its machine, pods of a cluster, or
replicas of Ray Serve.

A host outlives its jobs; each attempt at one gets a platform of its own from it. Which host there
is, is the operator's to say: ``platform.yaml`` (``rlhfless serve --platform-file``) names a
cluster's platform, without it everything runs here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import yaml

from controller.ledger import Ledger
from controller.platforms.base import Deployment, Instance, InstanceState, Platform
from controller.platforms.local import LocalPlatform
from controller.platforms.local_host import LocalHost, LocalOptions
from controller.platforms.local_logs import LogFiles, LogSlice
from rlhfless.errors import UserError, of_os_error
from rlhfless.messages import FunctionName

if TYPE_CHECKING:
    from controller.platforms.knative import KnativePlatform
    from controller.platforms.knative_settings import KnativeSettings
    from controller.platforms.kube import Kube

TOKEN_VARIABLE = "RLHFLESS_FUNCTION_TOKEN"  # noqa: S105  (the name of a variable)
Stats = Mapping[tuple[FunctionName, InstanceState], int]
Live = Callable[[], Awaitable[Collection[str]]]


class JobPlatform(Platform, Protocol):
    """A platform that holds one of several jobs to its share, and tells what its instances
    wrote."""

    def bound(self, function: FunctionName, most: int) -> None: ...

    def log_slices(self) -> list[LogSlice]: ...

    def drop_logs(self, parts: Iterable[LogSlice]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A job's functions. ``kinds``: what instances must have in common to be exchanged, of strings
    and tuples; ``together``: functions that may also serve several jobs of a kind at once;
    ``logged_to_s``: Unix time up to which what they said has been kept by now."""

    job: str
    deployments: Sequence[Deployment]
    ledger: Ledger
    kinds: Mapping[FunctionName, Hashable]
    together: frozenset[FunctionName] = frozenset()
    logged_to_s: float = 0.0


class Host(Protocol):
    def platform(self, wanted: Wanted) -> AbstractAsyncContextManager[JobPlatform]: ...

    def stats(self) -> Stats:
        """Instances of each function in each state; what is not there is 0."""
        ...

    async def sweep(self, live: Live) -> int:
        """Remove what replicas that are gone have left, and say how much; ``live`` tells the jobs
        that run."""
        ...


class HereHost:
    """Processes of this machine."""

    def __init__(self, local: LocalHost) -> None:
        self._local = local

    def platform(self, wanted: Wanted) -> LocalPlatform:
        return LocalPlatform(
            wanted.deployments, ledger=wanted.ledger, host=self._local, kinds=wanted.kinds
        )

    def stats(self) -> Stats:
        return self._local.stats()

    async def sweep(self, live: Live) -> int:  # noqa: ARG002 (the Protocol's)
        """Nothing of a replica outlives it."""
        return 0


class KnativeHost:
    """Pods of a cluster; several jobs may share those whose model does not change. Training whose
    workers do not fit into one pod is a gang of pods, or is on ``ray``, where there is one."""

    def __init__(
        self,
        kube: Kube,
        settings: KnativeSettings,
        token: str,
        logs: LogFiles,
        ray: Host | None = None,
    ) -> None:
        self._kube = kube
        self._ray = ray
        self._logs = logs
        self._settings = settings
        self._token = token
        self._platforms: set[JobPlatform] = set()

    @contextlib.asynccontextmanager
    async def platform(self, wanted: Wanted) -> AsyncGenerator[JobPlatform, None]:
        from controller.platforms.by_function import ByFunction
        from controller.platforms.gang_manifest import needs_gang

        spread = [d for d in wanted.deployments if needs_gang(d, self._settings)]
        rest = [d for d in wanted.deployments if d not in spread]
        gangs = [self._gang(wanted, one) for one in spread]
        async with contextlib.AsyncExitStack() as stack:
            made: JobPlatform = await stack.enter_async_context(self._knative(wanted, rest))
            parts: dict[FunctionName, JobPlatform] = {one.function: made for one in rest}
            for one, gang in zip(spread, gangs, strict=True):
                parts[one.function] = await stack.enter_async_context(gang)
                made = ByFunction(parts)
            self._platforms.add(made)
            stack.callback(self._platforms.discard, made)
            yield made

    def _knative(self, wanted: Wanted, deployments: Sequence[Deployment]) -> KnativePlatform:
        from controller.platforms.knative import KnativePlatform

        return KnativePlatform(
            deployments,
            job=wanted.job,
            ledger=wanted.ledger,
            kube=self._kube,
            settings=self._settings,
            token=self._token,
            logs=self._logs,
            logged_to_s=wanted.logged_to_s,
            kinds={function: wanted.kinds[function] for function in wanted.together},
        )

    def _gang(
        self, wanted: Wanted, training: Deployment
    ) -> AbstractAsyncContextManager[JobPlatform]:
        from controller.platforms.gang import GangPlatform

        if self._ray is not None:
            return self._ray.platform(replace(wanted, deployments=[training]))
        return GangPlatform(
            training,
            job=wanted.job,
            ledger=wanted.ledger,
            kube=self._kube,
            settings=self._settings,
            token=self._token,
        )

    def stats(self) -> Stats:
        found: dict[str, Instance] = {}
        for one in (i for platform in self._platforms for i in platform.instances()):
            if one.id not in found or one.calls:  # that jobs share, one of which may be calling
                found[one.id] = one
        return Counter((one.function, one.state) for one in found.values())

    async def sweep(self, live: Live) -> int:
        from controller.platforms.knative_garbage import collect

        removed = len(await collect(self._kube, self._settings, live))
        return removed if self._ray is None else removed + await self._ray.sweep(live)


@contextlib.asynccontextmanager
async def open_host(
    platform_file: str | None, logs: str, options: LocalOptions
) -> AsyncGenerator[Host, None]:
    """``logs``: folder for what instances say, until it is kept with their job. Raises
    ``UserError`` for a file that names no platform this release has, or that cannot be followed
    here."""
    if platform_file is None:
        async with LocalHost(logs, options) as local:
            yield HereHost(local)
        return
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise UserError(f"{TOKEN_VARIABLE} must hold the token that functions ask for")
    if _platform_in(platform_file) == "ray":
        from controller.service.ray_host import open_ray_host

        async with open_ray_host(platform_file, token) as on_ray:
            yield on_ray
        return
    try:
        from controller.platforms.kube import Kube
    except ModuleNotFoundError as error:
        hint = "pip install 'rlhfless[k8s]'"
        raise UserError("the Kubernetes client is not installed", hint=hint) from error
    from controller.platforms.knative_settings import load_settings

    settings = load_settings(platform_file)
    files = LogFiles(logs, keep=False)
    try:
        await asyncio.to_thread(files.make_folder)
    except OSError as error:
        raise of_os_error(f"cannot write to {files.folder}", error) from error
    async with contextlib.AsyncExitStack() as stack:
        ray: Host | None = None
        if settings.training.gang == "ray":
            from controller.platforms.ray_settings import settings_of_gangs
            from controller.service.ray_host import ray_host

            ray = await stack.enter_async_context(ray_host(settings_of_gangs(settings), token))
        kube = await stack.enter_async_context(await Kube.connect())
        yield KnativeHost(kube, settings, token, files, ray)


def _platform_in(path: str) -> object:
    """Which platform the file is of; what else is wrong with it is its platform's to say."""
    try:
        with open(path, encoding="utf-8") as file:
            told = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    return told.get("platform") if isinstance(told, dict) else None
