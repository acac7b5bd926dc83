"""A Knative platform over the stand-ins, with probes (``tests/apps/probe.py``) in its pods."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.aio.client import Configuration

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.knative import KnativePlatform
from controller.platforms.knative_settings import KnativeSettings
from controller.platforms.kube import Kube
from rlhfless.messages import FUNCTION_NAMES
from tests.support.knative_cluster import TOKEN, KnativeCluster
from tests.support.kube_api import KubeApi


@dataclass(frozen=True)
class World:
    api: KubeApi
    cluster: KnativeCluster
    kube: Kube
    settings: KnativeSettings

    def platform(
        self, *deployments: Deployment, job: str = "job-1", ledger: Ledger | None = None
    ) -> KnativePlatform:
        return KnativePlatform(
            deployments or [Deployment("rollout")],
            job=job,
            ledger=ledger or Ledger(),
            kube=self.kube,
            settings=self.settings,
            token=TOKEN,
        )


def settings(**changes: Any) -> KnativeSettings:
    functions = {name: {"image": f"registry.test/{name}@sha256:0"} for name in FUNCTION_NAMES}
    return KnativeSettings.model_validate({"functions": functions, **changes})


@contextlib.asynccontextmanager
async def world(
    folder: Path, *, idle_s: float | None = None, app: str = "create", **changes: Any
) -> AsyncGenerator[World, None]:
    async with (
        KubeApi().serving() as api,
        KnativeCluster(api, folder / "pods", app, idle_s).running() as cluster,
        Kube(client_configuration(api)) as kube,
    ):
        yield World(api, cluster, kube, settings(**changes))


def client_configuration(api: KubeApi) -> Configuration:
    return Configuration(host=api.url, api_key={"BearerToken": f"Bearer {api.token}"})
