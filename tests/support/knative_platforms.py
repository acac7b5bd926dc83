"""A Knative platform over the stand-ins, with probes (``tests/apps/probe.py``) in its pods."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.knative import KnativePlatform
from controller.platforms.knative_manifest import release_labels
from controller.platforms.knative_settings import Gang, KnativeSettings
from controller.platforms.kube import PODS, SERVICES, Kube, Object
from rlhfless.messages import FUNCTION_NAMES, FunctionName
from tests.support.given_cluster import (
    GivenCluster,
    ThroughGateway,
    configuration_of,
    given_cluster,
    on_given,
    terminate,
)
from tests.support.knative_cluster import TOKEN, KnativeCluster
from tests.support.kube_api import KubeApi
from tests.support.processes import lives


@dataclass(frozen=True)
class World:
    """``standin``: what there is instead of a cluster; None where one is given."""

    kube: Kube
    settings: KnativeSettings
    standin: Standin | None = None
    given: GivenCluster | None = None
    configuration: Configuration | None = None
    deeds: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def api(self) -> KubeApi:
        assert self.standin is not None, "mark the case with only_standin"
        return self.standin.api

    @property
    def cluster(self) -> KnativeCluster:
        assert self.standin is not None, "mark the case with only_standin"
        return self.standin.cluster

    def platform(
        self,
        *deployments: Deployment,
        job: str = "job-1",
        ledger: Ledger | None = None,
        kinds: Mapping[FunctionName, Hashable] | None = None,
    ) -> KnativePlatform:
        made = KnativePlatform(
            deployments or [Deployment("rollout")],
            job=job,
            ledger=ledger or Ledger(),
            kube=self.kube,
            settings=self.settings,
            token=TOKEN,
            kinds=kinds,
        )
        if self.given is not None and self.given.gateway:
            through = ThroughGateway(self.given.gateway)
            made._client._transport = through
        return made

    async def services(self) -> list[Object]:
        """Of this world's release."""
        labels = release_labels(self.settings)
        return (await self.kube.list(SERVICES, self.settings.namespace, labels))[0]

    async def pods(self) -> list[Object]:
        labels = release_labels(self.settings)
        return (await self.kube.list(PODS, self.settings.namespace, labels))[0]

    async def no_pods(self) -> None:
        """Waits until all are gone."""
        while await self.pods():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def preempt(self, pod: str) -> None:
        """Its function gets SIGTERM."""
        if self.standin is not None:
            self.standin.cluster.preempt(pod)
            return
        assert self.configuration is not None
        work = terminate(self.configuration, self.settings.namespace, pod, "function")
        self.deeds.add(asyncio.create_task(work))

    def lives(self, who: int) -> bool:
        """``who``: as probes call themselves."""
        return self.standin is not None and lives(who)

    def kill(self, pod: str) -> None:
        if self.standin is None:
            pytest.skip("needs the stand-in: nodes of a given cluster are not killed")
        self.standin.cluster.kill(pod)


@dataclass(frozen=True)
class Standin:
    api: KubeApi
    cluster: KnativeCluster


def with_gangs(told: KnativeSettings, queue: str = "gangs") -> KnativeSettings:
    """Training over nodes, a worker each."""
    return told.model_copy(update={"training": Gang(gang="kueue", kueue_queue=queue)})


def settings(
    *,
    spot: int = 0,
    function: Any = None,
    nodes: Mapping[str, str] | None = None,
    **knative: Any,
) -> KnativeSettings:
    """As the chart renders them: at most 8 on-demand pods of each function, and ``spot`` others.
    ``function``: what else is said of each, ``nodes``: their node selector, ``knative``: of
    requests."""

    def pods(name: str) -> dict[str, Any]:
        sizes = {"on-demand": 8, "spot": spot}
        pools = [
            {"name": pool, "maxInstances": most, "template": template(name, pool, nodes)}
            for pool, most in sizes.items()
            if most
        ]
        return {"pools": pools, "scaleDownDelay": "0s", **(function or {})}

    return KnativeSettings.model_validate(
        {
            "namespace": "default",
            "release": "rlhfless",
            "knative": knative,
            "functions": {name: pods(name) for name in FUNCTION_NAMES},
        }
    )


def template(name: str, pool: str, nodes: Mapping[str, str] | None = None) -> dict[str, Any]:
    token = {"secretKeyRef": {"name": "rlhfless-functions", "key": "token"}}
    return {
        "metadata": {
            "labels": {"app.kubernetes.io/component": "function", "rlhfless.io/pool": pool}
        },
        "spec": {
            "nodeSelector": dict(nodes or {}),
            "containers": [
                {
                    "name": "function",
                    "image": "registry.test/functions@sha256:0",
                    "command": ["python", "-m", "functions.host"],
                    "args": [
                        f"--function={name}",
                        "--port=8000",
                        "--threads=1",
                        "--accelerator=cpu",
                    ],
                    "ports": [{"name": "http1", "containerPort": 8000}],
                    "env": [{"name": "RLHFLESS_FUNCTION_TOKEN", "valueFrom": token}],
                }
            ],
        },
    }


@contextlib.asynccontextmanager
async def world(
    folder: Path, *, app: str | None = "create", told: KnativeSettings | None = None
) -> AsyncGenerator[World, None]:
    """A stand-in, or a place of one's own in the cluster that the environment gives. Nothing may be
    left in either."""
    given = given_cluster()
    if given is not None:
        async with _place_in(given, app, told or settings()) as place:
            yield place
        return
    api = KubeApi()
    cluster = KnativeCluster(api, folder / "pods", app)
    async with (
        api.serving(*cluster.routes),
        cluster.running(),
        Kube(client_configuration(api)) as kube,
    ):
        yield World(kube, told or settings(), Standin(api, cluster))


@contextlib.asynccontextmanager
async def _place_in(
    given: GivenCluster, app: str | None, told: KnativeSettings
) -> AsyncGenerator[World, None]:
    if app is None:
        pytest.skip("needs the stand-in: pods of a given cluster do not see this machine's files")
    here = on_given(told, given, app, TOKEN, f"test-{uuid.uuid4().hex[:8]}")
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("KUBECONFIG", given.kubeconfig)
        kube = await Kube.connect()
    configuration = await configuration_of(given)
    async with kube:
        place = World(kube, here, given=given, configuration=configuration)
        try:
            yield place
            await asyncio.gather(*place.deeds)
            left = {item["metadata"]["name"] for item in await place.services()}
            assert not left, f"left in the cluster: {left}"
            async with asyncio.timeout(60):
                await place.no_pods()
        finally:
            for item in await place.services():
                await kube.delete(SERVICES, item)


def client_configuration(api: KubeApi) -> Configuration:
    return Configuration(host=api.url, api_key={"BearerToken": f"Bearer {api.token}"})


def kubeconfig(api: KubeApi) -> dict[str, Any]:
    """What leads ``kubectl`` and ``Kube.connect`` to the stand-in."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {"token": api.token}}],
    }
