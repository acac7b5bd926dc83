"""The Knative Services of a job's functions, as the API server is told of them. Pure.

Every setting here that is not obvious stands against a trap:

- scaling by concurrent calls with a hard limit a pod, all through the activator (burst capacity
  -1), so that a call never waits in the queue of a busy pod while another pod is free;
- ``max-scale`` always, because panic mode would double without it;
- ``initial-scale`` 0, so that applying a Service takes no GPU;
- a progress deadline as long as a node, an image and a model take (Knative's 600 s is shorter);
- a scale-down delay of the function's idle time-out: longer than the gap between two steps.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import msgspec

from controller.platforms.base import Deployment
from controller.platforms.knative_settings import FunctionPods, KnativeSettings, Placement
from controller.platforms.kube import Object
from rlhfless.messages import FunctionName

PORT = 8000
LABEL = "rlhfless.io"
MANAGED = {"app.kubernetes.io/managed-by": "rlhfless"}
HOLDER = f"{LABEL}/holder"
"""Annotation: which platform object made or took over a Service; it alone deletes it in order."""
JOB = f"{LABEL}/job"
"""Annotation: the job's id in full (labels hold its digest)."""
_SHORTEST_WINDOW_S, _LONGEST_DELAY_S = 6, 3600


@dataclass(frozen=True)
class Lane:
    """One Service of a function: on preemptible nodes or not."""

    function: FunctionName
    spot: bool
    max_instances: int


def lanes(deployment: Deployment, pods: FunctionPods) -> list[Lane]:
    """The cheap one first. The other may take all instances: spot nodes can run out."""
    most = deployment.max_instances
    spot = min(pods.spot.max_instances, most)
    on_demand = Lane(deployment.function, False, most)
    return [Lane(deployment.function, True, spot), on_demand] if spot else [on_demand]


def job_label(job: str) -> str:
    """A job's id as a label's value, whatever characters it has."""
    return hashlib.sha256(job.encode()).hexdigest()[:16]


def release_labels(settings: KnativeSettings) -> dict[str, str]:
    """What everything of this installation bears; nothing of another one does."""
    return {**MANAGED, "app.kubernetes.io/instance": settings.release}


def job_labels(settings: KnativeSettings, job: str) -> dict[str, str]:
    return {**release_labels(settings), f"{LABEL}/job": job_label(job)}


def service_name(settings: KnativeSettings, job: str, lane: Lane) -> str:
    """The same for every controller that drives the job, so that one takes over from another. Short
    enough for the names that Knative derives from it."""
    digest = hashlib.sha256(f"{settings.release}/{job}".encode()).hexdigest()[:10]
    return f"fn-{digest}-{lane.function}" + ("-spot" if lane.spot else "")


def service_manifest(
    settings: KnativeSettings,
    job: str,
    deployment: Deployment,
    lane: Lane,
    holder: str,
    owner: Object | None = None,
) -> Object:
    """``owner``: an owner reference. Two calls with other ``holder`` and ``owner`` differ in
    nothing that would make a new revision."""
    labels = {
        **job_labels(settings, job),
        "app.kubernetes.io/name": "rlhfless-function",
        f"{LABEL}/function": lane.function,
        f"{LABEL}/capacity": "spot" if lane.spot else "on-demand",
    }
    metadata: Object = {
        "name": service_name(settings, job, lane),
        "namespace": settings.namespace,
        "labels": {**labels, "networking.knative.dev/visibility": "cluster-local"},
        "annotations": {HOLDER: holder, JOB: job},
    }
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": _annotations(settings, deployment, lane),
                },
                "spec": _pod(settings, deployment, lane),
            }
        },
    }


def _annotations(settings: KnativeSettings, deployment: Deployment, lane: Lane) -> dict[str, str]:
    delay_s = _LONGEST_DELAY_S
    if math.isfinite(deployment.idle_timeout_s):
        delay_s = min(_LONGEST_DELAY_S, math.ceil(deployment.idle_timeout_s))
    scaling = {
        "class": "kpa.autoscaling.knative.dev",
        "metric": "concurrency",
        "target-utilization-percentage": "100" if deployment.concurrency == 1 else "70",
        "target-burst-capacity": "-1",
        "min-scale": "0",
        "max-scale": str(lane.max_instances),
        "window": f"{max(_SHORTEST_WINDOW_S, min(60, delay_s))}s",
        "scale-down-delay": f"{delay_s}s",
    }
    if settings.initial_scale_zero:
        scaling["initial-scale"] = "0"
    return {
        **{f"autoscaling.knative.dev/{name}": value for name, value in scaling.items()},
        "serving.knative.dev/progress-deadline": f"{settings.start_timeout_s}s",
    }


def _pod(settings: KnativeSettings, deployment: Deployment, lane: Lane) -> Object:
    pods = settings.functions[lane.function]
    spec: Object = {
        "containerConcurrency": deployment.concurrency,
        "timeoutSeconds": settings.request_timeout_s,
        "responseStartTimeoutSeconds": settings.request_timeout_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(settings, pods, deployment)],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    if pods.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in pods.image_pull_secrets]
    if pods.service_account_name:
        spec["serviceAccountName"] = pods.service_account_name
    return spec | _place(_merged(pods, pods.spot) if lane.spot else pods)


def _merged(pods: Placement, spot: Placement) -> Placement:
    """Spot nodes are chosen on top of what the function asks of any node."""
    return Placement(
        node_selector={**pods.node_selector, **spot.node_selector},
        tolerations=[*pods.tolerations, *spot.tolerations],
        affinity=spot.affinity or pods.affinity,
        priority_class_name=spot.priority_class_name or pods.priority_class_name,
        runtime_class_name=spot.runtime_class_name or pods.runtime_class_name,
    )


def _place(placement: Placement) -> Object:
    """Only what is said: each of these fields needs a feature flag of Knative."""
    given: Object = {
        "nodeSelector": placement.node_selector,
        "tolerations": placement.tolerations,
        "affinity": placement.affinity,
        "priorityClassName": placement.priority_class_name,
        "runtimeClassName": placement.runtime_class_name,
    }
    return {name: value for name, value in given.items() if value}


def _container(settings: KnativeSettings, pods: FunctionPods, deployment: Deployment) -> Object:
    options = {
        "function": deployment.function,
        "port": PORT,
        "threads": deployment.threads,
        "accelerator": deployment.accelerator,
        "concurrency": deployment.concurrency,
        "workdir": "/scratch",
        "engine": msgspec.json.encode(deployment.engine).decode(),
    }
    secret = {"name": settings.token_secret.name, "key": settings.token_secret.key}
    limits = dict(pods.resources.limits)
    if pods.accelerator.count:
        limits[pods.accelerator.resource] = str(pods.accelerator.count)
    env: dict[str, str] = {"HOME": "/scratch", "TMPDIR": "/scratch", "OMP_WAIT_POLICY": "passive"}
    container: Object = {
        "name": "function",
        "image": pods.image,
        "command": ["python", "-m", "functions.host"],
        "args": [f"--{name}={value}" for name, value in options.items()],
        "ports": [{"name": "http1", "containerPort": PORT}],
        "env": [
            *({"name": name, "value": value} for name, value in {**env, **pods.env}.items()),
            {"name": "RLHFLESS_FUNCTION_TOKEN", "valueFrom": {"secretKeyRef": secret}},
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz"}, "periodSeconds": 5},
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "resources": {
            name: value
            for name, value in (("requests", pods.resources.requests), ("limits", limits))
            if value
        },
    }
    if pods.env_from_secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in pods.env_from_secrets]
    return container
