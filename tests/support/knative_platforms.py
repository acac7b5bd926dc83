"""A Knative platform over the stand-ins, with probes (``tests/apps/probe.py``) in its pods."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.aio.client import Configuration

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.knative import KnativePlatform
from controller.platforms.knative_settings import Gang, KnativeSettings
from controller.platforms.kube import Kube
from rlhfless.messages import FUNCTION_NAMES, FunctionName
from tests.support.knative_cluster import TOKEN, KnativeCluster
from tests.support.kube_api import KubeApi


@dataclass(frozen=True)
class World:
    api: KubeApi
    cluster: KnativeCluster
    kube: Kube
    settings: KnativeSettings

    def platform(
        self,
        *deployments: Deployment,
        job: str = "job-1",
        ledger: Ledger | None = None,
        kinds: Mapping[FunctionName, Hashable] | None = None,
    ) -> KnativePlatform:
        return KnativePlatform(
            deployments or [Deployment("rollout")],
            job=job,
            ledger=ledger or Ledger(),
            kube=self.kube,
            settings=self.settings,
            token=TOKEN,
            kinds=kinds,
        )


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
    api = KubeApi()
    cluster = KnativeCluster(api, folder / "pods", app)
    async with (
        api.serving(cluster.logs.route),
        cluster.running(),
        Kube(client_configuration(api)) as kube,
    ):
        yield World(api, cluster, kube, told or settings())


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
