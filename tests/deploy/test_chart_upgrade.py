"""An upgrade keeps the secrets that running pods know."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.support.helm import Helm, Manifest
from tests.support.helm_cluster import helm_cluster

KNATIVE = {"platform": "knative"}
OURS = {"meta.helm.sh/release-name": "demo", "meta.helm.sh/release-namespace": "rlhf"}
"""By these Helm knows the objects of a release; it takes over no others."""


def _told(secret: Manifest) -> dict[str, str]:
    """Its contents, whichever way they are written."""
    data = {k: base64.b64decode(v).decode() for k, v in secret.get("data", {}).items()}
    return data | secret.get("stringData", {})


def test_secrets_that_are_there_are_kept(helm: Helm, tmp_path: Path) -> None:
    with helm_cluster(tmp_path) as (api, cluster):
        first = helm.render(KNATIVE, cluster=cluster)
        for secret in first.of("Secret"):
            data = {k: base64.b64encode(v.encode()).decode() for k, v in _told(secret).items()}
            metadata = secret["metadata"] | {"annotations": OURS}
            stored = {"kind": "Secret", "apiVersion": "v1", "metadata": metadata}
            api.store.create(("api/v1", "secrets", "rlhf"), stored | {"data": data})
        again = helm.render(KNATIVE | {"controller.replicas": "3"}, cluster=cluster)
    secrets = {secret["metadata"]["name"]: _told(secret) for secret in first.of("Secret")}
    assert set(secrets) == {"demo-rlhfless-redis", "demo-rlhfless-function-token"}
    assert secrets == {secret["metadata"]["name"]: _told(secret) for secret in again.of("Secret")}


def test_redis_refuses_writes_before_its_pod_is_killed_for_its_memory(helm: Helm) -> None:
    for limit, said in (("2Gi", "1536mb"), ("512Mi", "384mb"), ("2G", "1430mb")):
        values = {"redis.resources.limits.memory": limit}
        told = _told(helm.render(values).one("Secret", "demo-rlhfless-redis"))["redis.conf"]
        assert f"maxmemory {said}" in told.splitlines()


def test_each_installation_has_secrets_of_its_own(helm: Helm) -> None:
    one, other = (helm.render(KNATIVE).one("Secret", "demo-rlhfless-function-token") for _ in "ab")
    assert len(_told(one)["token"]) == 43
    assert _told(one) != _told(other)
