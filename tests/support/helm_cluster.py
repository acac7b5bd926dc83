"""An API server that Helm looks things up on: the stand-in, and what it tells of its kinds.

(Helm writes releases as protobuf, which the stand-in does not read: it cannot install there.)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.knative_cluster import KnativeCluster
from tests.support.kube_api import KubeApi, Object

START_S = 30.0
KINDS = {
    "v1": ("ConfigMap", "PersistentVolumeClaim", "Pod", "Secret", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment", "StatefulSet"),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "networking.k8s.io/v1": ("Ingress", "NetworkPolicy"),
    "policy/v1": ("PodDisruptionBudget",),
    "rbac.authorization.k8s.io/v1": ("Role", "RoleBinding"),
}


def _plural(kind: str) -> str:
    name = kind.lower()
    if name.endswith("y"):
        return name.removesuffix("y") + "ies"
    return name + ("es" if name.endswith("s") else "s")


def _resources(version: str) -> Object:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": [
            {
                "name": _plural(kind),
                "singularName": kind.lower(),
                "namespaced": True,
                "kind": kind,
                "verbs": verbs,
            }
            for kind in KINDS[version]
        ],
    }


def _group(version: str) -> Object:
    name, _, number = version.partition("/")
    one = {"groupVersion": version, "version": number}
    return {"name": name, "versions": [one], "preferredVersion": one}


def discovery() -> list[Route]:
    """Version, groups and kinds, as Helm asks for them before it sends anything."""
    answers: dict[str, Object] = {
        "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [_group(version) for version in KINDS if version != "v1"],
        },
    }
    for version in KINDS:
        answers[f"/{'api' if version == 'v1' else 'apis'}/{version}"] = _resources(version)

    def route(path: str, answer: Object) -> Route:
        async def answered(_: Request) -> Response:
            return JSONResponse(answer)

        return Route(path, answered)

    return [route(path, answer) for path, answer in answers.items()]


@contextlib.contextmanager
def helm_cluster(
    folder: Path, objects: Sequence[tuple[str, str, Object]] = (), *, knative: bool = False
) -> Iterator[tuple[KubeApi, Path]]:
    """The server, in a thread of its own, and a kubeconfig for it. ``objects``: what is there, with
    its API and plural; ``knative``: whether Services get pods, which are processes here."""
    api = KubeApi(token="")  # Go's client sends none over plain HTTP
    for version, plural, item in objects:
        api.store.create((version, plural, item["metadata"]["namespace"]), item)
    ready, done = threading.Event(), threading.Event()

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            cluster = _Cluster(api, folder / "pods", None)
            await stack.enter_async_context(api.serving(*discovery(), *cluster.routes))
            if knative:
                await stack.enter_async_context(cluster.running())
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="cluster", daemon=True)
    thread.start()
    try:
        assert ready.wait(START_S), "the server has not started"
        config = folder / "kubeconfig"
        config.write_text(json.dumps(_kubeconfig(api.url)), encoding="utf-8")
        config.chmod(0o600)
        yield api, config
    finally:
        done.set()
        thread.join(START_S)


class _Cluster(KnativeCluster):
    """Where the tests' releases are."""

    def _key(self, plural: str, namespace: str = "rlhf") -> tuple[str, str, str]:
        return super()._key(plural, namespace)


def _kubeconfig(url: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
    }
