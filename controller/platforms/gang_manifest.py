"""A training instance over several nodes, as the API server is told of it. Pure.

An Indexed Job with a pod a node, which Kueue admits whole or not at all, and a Service without an
address of its own, by which the pods find the first of them. Pods are the chart's, as on Knative;
what is added makes them ranks of one group (``functions.ranks``). Probes are left out: a follower
serves nothing, and a Job has one template for all its pods; the platform asks the leader itself.

A gang that broke is never mended: the Job has no retries, and the next gang has another name, so
that nobody meets a rank of the last one.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass

import msgspec

from controller.platforms.base import Deployment
from controller.platforms.knative_manifest import HOLDER, JOB, LABEL, PORT, job_labels
from controller.platforms.knative_settings import KnativeSettings, Pool
from controller.platforms.kube import Object
from rlhfless.errors import UserError

GANG = f"{LABEL}/gang"
"""Label of all that is of one gang: its Job's name."""
SHAPE = f"{LABEL}/shape"
"""Annotation: a digest of what its pods are, by which one is taken over or not."""
QUEUE = "kueue.x-k8s.io/queue-name"
RENDEZVOUS_PORT = 29500
_PROBES = ("readinessProbe", "livenessProbe", "startupProbe")


@dataclass(frozen=True)
class Size:
    """``nodes`` pods with an equal part of the ``workers``."""

    nodes: int
    workers: int


def pod_workers(settings: KnativeSettings) -> int:
    """Workers of training that one pod has accelerators for; without any, one."""
    return max(1, settings.functions["training"].count)


def needs_gang(deployment: Deployment, settings: KnativeSettings) -> bool:
    """Whether it is training whose workers do not fit into one pod, and may be spread over several
    here. (Where it may not, ``as_here`` refuses it; without accelerators all workers are processes
    of one pod.)"""
    if deployment.function != "training" or "training" not in settings.functions:
        return False
    return settings.training.gang != "none" and deployment.workers > pod_workers(settings)


def gang_size(deployment: Deployment, settings: KnativeSettings) -> Size:
    """Raises ``UserError`` for a number of workers that no gang of this cluster has."""
    each, workers = pod_workers(settings), deployment.workers
    most = each * settings.training.nodes
    if workers % each or workers > most:
        raise UserError(
            f"training.workers is {workers}, and a gang here has {each} for each of at most "
            f"{settings.training.nodes} nodes",
            param="training.workers",
            hint=f"take a multiple of {each} up to {most}, or raise knative.training.nodes in the "
            "chart's values",
        )
    return Size(workers // each, workers)


def job_manifest(
    settings: KnativeSettings,
    job: str,
    deployment: Deployment,
    name: str,
    holder: str,
    owner: Object | None = None,
) -> Object:
    """The Job ``name`` for the training of ``job``. ``deployment``: as it is here."""
    size = gang_size(deployment, settings)
    template = copy.deepcopy(_pool(settings).template)
    given: Object = template.get("metadata", {})
    labels = {
        **given.get("labels", {}),
        **gang_labels(settings, job),
        GANG: name,
    }
    spec: Object = {
        **template["spec"],
        "subdomain": name,
        "restartPolicy": "Never",
        "containers": [
            _container(template["spec"]["containers"][0], deployment, size, name),
            *template["spec"]["containers"][1:],
        ],
    }
    metadata: Object = {
        "name": name,
        "namespace": settings.namespace,
        "labels": {**labels, QUEUE: settings.training.kueue_queue},
        "annotations": {HOLDER: holder, JOB: job, SHAPE: shape(settings, job, deployment)},
    }
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": size.nodes,
            "parallelism": size.nodes,
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": labels, "annotations": given.get("annotations", {})},
                "spec": spec,
            },
        },
    }


def address_manifest(made: Object) -> Object:
    """The Service that gives the pods of a Job their names. It goes with the Job, as read."""
    metadata = made["metadata"]
    name, gang = metadata["name"], {GANG: metadata["labels"][GANG]}
    labels = {n: v for n, v in metadata["labels"].items() if n != QUEUE}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": labels,
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": metadata["uid"]}
            ],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks meet before the leader is ready
            "selector": gang,
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
        },
    }


def gang_labels(settings: KnativeSettings, job: str) -> dict[str, str]:
    """By which the Jobs and pods of a job's gangs are found."""
    return {**job_labels(settings, job), f"{LABEL}/function": "training"}


def shape(settings: KnativeSettings, job: str, deployment: Deployment) -> str:
    ours = (deployment.threads, deployment.accelerator, deployment.concurrency, deployment.workers)
    engine, queue = msgspec.to_builtins(deployment.engine), settings.training.kueue_queue
    told = [job, ours, engine, queue, _pool(settings).template]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _pool(settings: KnativeSettings) -> Pool:
    """Pods that stay, where there are any: losing one loses the gang."""
    pools = [p for p in settings.functions["training"].pools if p.max_instances]
    return min(pools, key=lambda pool: pool.name == "spot")


def _container(container: Object, deployment: Deployment, size: Size, name: str) -> Object:
    ours = {
        "threads": deployment.threads,
        "accelerator": deployment.accelerator,
        "concurrency": deployment.concurrency,
        "engine": msgspec.json.encode(deployment.engine).decode(),
        "port": PORT,
        "workers": size.workers,
        "nodes": size.nodes,
        "node-rank": "$(JOB_COMPLETION_INDEX)",  # Kubernetes puts the pod's number there
        "rendezvous": f"{name}-0.{name}:{RENDEZVOUS_PORT}",
    }
    kept = [
        argument
        for argument in container.get("args", [])
        if argument.removeprefix("--").partition("=")[0] not in ours
    ]
    plain = {field: value for field, value in container.items() if field not in _PROBES}
    return {**plain, "args": [*kept, *(f"--{field}={value}" for field, value in ours.items())]}
