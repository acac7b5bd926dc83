"""Values that make no sense are refused, by name."""

from __future__ import annotations

import pytest

from tests.support.helm import DIGESTS, EXAMPLES, Helm

KNATIVE = {"platform": "knative"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"controler.replicas": "2"}, "controler"),
        ({"controller.replica": "2"}, "replica"),
        ({"controller.replicas": "none"}, "replicas"),
        ({"platform": "nomad"}, "platform"),
        ({"images.controller.tag": "latest"}, "tag"),
        ({"images.controller.digest": "sha256:12"}, "digest"),
        ({"functions.rollout.gpus": "1"}, "gpus"),
        ({"functions.rolout.count": "1"}, "rolout"),
        ({"functions.rollout.spot.tolerate": "all"}, "tolerate"),
        ({"functions.training.scaleDownDelay": "ten minutes"}, "scaleDownDelay"),
        ({"functions.rollout.sharedMemory": "much"}, "sharedMemory"),
        ({"gateway.parentRefs[0].listener": "https"}, "listener"),
        ({"store.type": "nfs"}, "type"),
        ({"redis.external.url": "redis://:secret@redis:6379/0"}, "url"),
        ({"networkPolicy.storeCidrs[0]": "minio.storage"}, "storeCidrs"),
        ({"knative.training.gang": "mpi"}, "gang"),
        ({"knative.training.gang": "kueue"}, "kueueQueue"),
        ({"knative.training.queue": "a"}, "queue"),
        ({"controller.terminationGracePeriodSeconds": "5"}, "terminationGracePeriodSeconds"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, dict) else None,
)
def test_the_schema_refuses(helm: Helm, values: dict[str, str], told: str) -> None:
    refused = helm.try_render(values)
    assert refused.code != 0
    assert told in refused.error


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"store.type": "s3", "networkPolicy.storeCidrs[0]": "10.0.0.0/8"}, "store.bucket"),
        ({"store.type": "s3", "store.bucket": "b"}, "networkPolicy.storeCidrs"),
        ({"redis.enabled": "false"}, "redis.external"),
        ({"redis.external.existingSecret": "mine"}, "redis.enabled"),
        ({"images.requireDigests": "true"}, "digest"),
        ({"ingress.enabled": "true"}, "ingress.host"),
        ({"gateway.enabled": "true"}, "gateway.host"),
        ({"gateway.enabled": "true", "gateway.host": "a.b"}, "gateway.parentRefs"),
        (
            {
                "gateway.enabled": "true",
                "gateway.host": "a.b",
                "gateway.className": "eg",
                "gateway.parentRefs[0].name": "public",
            },
            "one of them",
        ),
        ({"redis.resources.limits.memory": "1Pi"}, "1Pi is no size"),
        ({"platform": "ray"}, "ray.address"),
        (KNATIVE | {"knative.training.gang": "ray"}, "ray.address"),
        (KNATIVE | {"functions.rollout.accelerator": "l4"}, "count"),
        (KNATIVE | {"functions.rollout.count": "1"}, "accelerator"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, dict) else None,
)
def test_what_does_not_go_together_is_refused(
    helm: Helm, values: dict[str, str], told: str
) -> None:
    refused = helm.try_render(values)
    assert refused.code != 0
    assert told in refused.error


def test_there_are_examples_for_each_platform(helm: Helm) -> None:
    assert {path.stem for path in EXAMPLES} == {"kind", "gke", "eks-spot", "on-prem-kuberay"}
    clouds = [path for path in EXAMPLES if path.stem in ("gke", "eks-spot")]
    for path in clouds:  # as they are, they ask for digests; ``DIGESTS`` are some
        assert "digest" in helm.try_render(files=[path]).error
        helm.render(DIGESTS, [path])
