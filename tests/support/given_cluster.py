"""A real cluster, where the environment gives one, instead of the stand-ins.

``RLHFLESS_TEST_KUBECONFIG`` leads to it; ``RLHFLESS_TEST_IMAGE`` is an image for functions that has
``tests/apps``; ``RLHFLESS_TEST_NAMESPACE`` is where Services may be made (``default``);
``RLHFLESS_TEST_GATEWAY`` is where Knative's inner gateway is reached from here, if Services are not
(``http://127.0.0.1:8081``, forwarded); ``RLHFLESS_TEST_VALUES`` are the chart's values there. See
docs/deploy.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from kubernetes.aio.client import Configuration, CoreV1Api
from kubernetes.aio.config import load_incluster_config, load_kube_config
from kubernetes.aio.stream import WsApiClient

from controller.platforms.knative_settings import KnativeSettings, duration_s

KUBECONFIG = "RLHFLESS_TEST_KUBECONFIG"
IMAGE = "RLHFLESS_TEST_IMAGE"
NAMESPACE = "RLHFLESS_TEST_NAMESPACE"
GATEWAY = "RLHFLESS_TEST_GATEWAY"
VALUES = "RLHFLESS_TEST_VALUES"
PATIENCE = 10
"""A node and its image take longer than a process: by how much one waits more."""
_SECURITY = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True)
class GivenCluster:
    kubeconfig: str
    image: str
    namespace: str
    gateway: str
    values: str


def given_cluster(environment: Mapping[str, str] = os.environ) -> GivenCluster | None:
    if not environment.get(KUBECONFIG):
        return None
    return GivenCluster(
        kubeconfig=environment[KUBECONFIG],
        image=environment.get(IMAGE, ""),
        namespace=environment.get(NAMESPACE, "default"),
        gateway=environment.get(GATEWAY, ""),
        values=environment.get(VALUES, ""),
    )


def only_standin(why: str) -> pytest.MarkDecorator:
    """For a case in which something is done that a real cluster cannot be made to do."""
    return pytest.mark.skipif(given_cluster() is not None, reason=f"needs the stand-in: {why}")


def on_given(
    told: KnativeSettings, given: GivenCluster, app: str, token: str, release: str
) -> KnativeSettings:
    """The settings of a test, for that cluster: its namespace, an image that can be pulled there,
    ``app`` of ``tests.apps.probe`` in it, and a release of its own."""
    assert given.image, f"{IMAGE} must name an image for functions that has tests/apps"
    document = told.model_dump(by_alias=True)
    document |= {"namespace": given.namespace, "release": release}
    document["knative"]["directSteering"] &= not given.gateway  # pods' addresses are of the cluster
    deadline_s = PATIENCE * duration_s(told.knative.progress_deadline)
    document["knative"]["progressDeadline"] = f"{min(1800, deadline_s)}s"
    for function in document["functions"].values():
        for pool in function["pools"]:
            _adapt(pool["template"]["spec"]["containers"][0], given, app, token)
    return KnativeSettings.model_validate(document)


def _adapt(container: dict[str, Any], given: GivenCluster, app: str, token: str) -> None:
    if container["image"].startswith("registry.test/"):
        container["image"] = given.image
    container["args"] += [f"--app=tests.apps.probe:{app}", "--workdir=/tmp"]
    container["env"] = [
        {"name": "RLHFLESS_FUNCTION_TOKEN", "value": token},
        {"name": "PYTHONPATH", "value": "/opt/rlhfless"},
        {"name": "HOME", "value": "/tmp"},
    ]
    container["securityContext"] = _SECURITY
    container["resources"] = {"requests": {"cpu": "100m", "memory": "256Mi"}}


class ThroughGateway(httpx.AsyncBaseTransport):
    """Requests go to the gateway, and keep the name of the Service that they were for."""

    def __init__(self, gateway: str) -> None:
        self._gateway = httpx.URL(gateway)
        limits = httpx.Limits(max_connections=None)
        self._inner = httpx.AsyncHTTPTransport(limits=limits, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        gateway = self._gateway
        there = {"scheme": gateway.scheme, "host": gateway.host, "port": gateway.port}
        request.url = request.url.copy_with(**there)  # the header Host stays
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def execute(
    configuration: Any, namespace: str, pod: str, container: str, command: list[str]
) -> str:
    """What a command in a container prints."""
    async with WsApiClient(configuration) as client:
        core = CoreV1Api(client)
        told: str = await core.connect_get_namespaced_pod_exec(
            pod,
            namespace,
            container=container,
            command=command,
            stdout=True,
            stderr=True,
            stdin=False,
            tty=False,
        )
    return told


async def configuration_of(given: GivenCluster) -> Configuration:
    configuration = Configuration()
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        load_incluster_config(client_configuration=configuration)
    else:
        await load_kube_config(given.kubeconfig, client_configuration=configuration)
    return configuration


async def terminate(configuration: Any, namespace: str, pod: str, container: str) -> None:
    """SIGTERM to a function, as a node that is taken away sends it. (A pod that is deleted gets it
    only when Knative's queue-proxy has no request left.)"""
    await execute(configuration, namespace, pod, container, ["sh", "-c", "kill -TERM 1"])
