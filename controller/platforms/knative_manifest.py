"""The Knative Services of functions, as the API server is told of them. Pure.

Most belong to one job. Functions whose model does not change over a job are alike for all jobs of a
tenant that use the same: one Service serves them, named for what its pods are.

The pods come from the operator's templates; what is added here belongs to the job, or stands
against a trap of Knative:

- scaling by concurrent calls with a hard limit a pod, all through the activator (burst capacity
  -1), so that a call never waits in the queue of a busy pod while another pod is free;
- ``max-scale`` always, because panic mode would double without it;
- ``initial-scale`` 0, so that applying a Service takes no GPU;
- a progress deadline as long as a node, an image and a model take (Knative's 600 s is shorter);
- a scale-down delay longer than the gap between two steps.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Hashable
from dataclasses import dataclass

import msgspec

from controller.platforms.base import Deployment
from controller.platforms.knative_settings import FunctionPods, KnativeSettings, Pool
from controller.platforms.kube import Object
from controller.platforms.offered import as_offered
from rlhfless.errors import UserError

PORT = 8000
LABEL = "rlhfless.io"
HOLDER = f"{LABEL}/holder"
"""Annotation: which platform object made or took over a Service; it alone deletes it in order."""
SHARED = f"{LABEL}/shared"
"""Label: the name of a Service that serves several jobs, on it and on its pods."""
JOB = f"{LABEL}/job"
"""Annotation: the job's id in full (the label of this name holds its digest)."""
_SHORTEST_WINDOW_S, _LONGEST_WINDOW_S = 6, 60
_LONGEST_DELAY_S = 3600


@dataclass(frozen=True)
class Lane:
    """One Service of a function: its pods are on one kind of nodes."""

    pool: Pool
    max_instances: int


def url_of(address: str) -> str:
    """Of the pod at this IP address."""
    return f"http://{f'[{address}]' if ':' in address else address}:{PORT}"


def lanes(deployment: Deployment, pods: FunctionPods, *, shared: bool = False) -> list[Lane]:
    """Spot nodes first. Each may take all instances: the other's nodes can run out. A Service that
    is shared has room for all its jobs, each of which keeps to its own bound."""
    order = sorted(pods.pools, key=lambda pool: pool.name != "spot")
    most = sum(pool.max_instances for pool in order) if shared else deployment.max_instances
    return [Lane(pool, min(pool.max_instances, most)) for pool in order if pool.max_instances]


def as_here(
    deployment: Deployment, settings: KnativeSettings, *, one_pod: bool = True
) -> Deployment:
    """The deployment as this cluster has it: its accelerators, its bounds. ``one_pod``: an instance
    must fit into one.

    Raises ``UserError`` where the job asks for a function or an accelerator that is not here.
    """
    name = deployment.function
    pods = settings.functions.get(name)
    offered = as_offered(
        deployment,
        pods,
        0 if pods is None else sum(pool.max_instances for pool in pods.pools),
        said_in="the chart's values",
        longest_idle_s=_LONGEST_DELAY_S,
    )
    if one_pod and pods is not None and 0 < pods.count < deployment.workers:
        raise UserError(
            f"a pod of the {name} function of this cluster has {pods.count} accelerators, fewer "
            f"than {deployment.workers} workers",
            param=f"{name}.workers",
            hint=f"set it to {pods.count}, raise functions.{name}.count in the chart's values, or "
            "spread training over nodes with knative.training.gang",
        )
    return offered


def release_labels(settings: KnativeSettings) -> dict[str, str]:
    """What everything of this installation bears; nothing of another one does."""
    return {
        "app.kubernetes.io/managed-by": "rlhfless",
        "app.kubernetes.io/instance": settings.release,
    }


def job_labels(settings: KnativeSettings, job: str) -> dict[str, str]:
    """A job's id may have any characters and a label's value may not, so that is a digest."""
    digest = hashlib.sha256(job.encode()).hexdigest()[:16]
    return {**release_labels(settings), f"{LABEL}/job": digest}


def service_name(settings: KnativeSettings, job: str, function: str, pool: str) -> str:
    """The same for every controller that drives the job, so that one takes over from another. Short
    enough for the names that Knative derives from it."""
    digest = hashlib.sha256(f"{settings.release}/{job}".encode()).hexdigest()[:10]
    return f"fn-{digest}-{function}" + ("-spot" if pool == "spot" else "")


def service_manifest(
    settings: KnativeSettings,
    job: str,
    deployment: Deployment,
    lane: Lane,
    holder: str,
    owner: Object | None = None,
) -> Object:
    """A Service of one job's. ``deployment``: as it is here; ``owner``: an owner reference. Two
    calls with other holders and owners differ in nothing that would make a new revision."""
    name = service_name(settings, job, deployment.function, lane.pool.name)
    marks = {HOLDER: holder, JOB: job}
    return _service(
        settings, name, job_labels(settings, job), marks, _spec(settings, deployment, lane), owner
    )


def shared_manifest(
    settings: KnativeSettings,
    kind: Hashable,
    deployment: Deployment,
    lane: Lane,
    mark: dict[str, str],
    owner: Object | None = None,
) -> Object:
    """A Service for all jobs whose functions are of this ``kind`` and run alike: its name follows
    from both, so two that want one of the same name want the same one. ``kind`` is of strings and
    tuples, so every controller writes it alike; ``mark``: the annotation of who asks."""
    spec = _spec(settings, deployment, lane)
    told = [settings.release, deployment.function, lane.pool.name, repr(kind), spec]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:10]
    name = f"fn-{digest}-{deployment.function}" + ("-spot" if lane.pool.name == "spot" else "")
    labels = {**release_labels(settings), SHARED: name}
    return _service(settings, name, labels, mark, spec, owner)


def _service(
    settings: KnativeSettings,
    name: str,
    labels: dict[str, str],
    annotations: dict[str, str],
    spec: Object,
    owner: Object | None,
) -> Object:
    spec = copy.deepcopy(spec)
    told: Object = spec["template"]["metadata"]
    told["labels"] |= labels
    metadata: Object = {
        "name": name,
        "namespace": settings.namespace,
        "labels": {**told["labels"], "networking.knative.dev/visibility": "cluster-local"},
        "annotations": annotations,
    }
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": spec,
    }


def _spec(settings: KnativeSettings, deployment: Deployment, lane: Lane) -> Object:
    template = copy.deepcopy(lane.pool.template)
    given: Object = template.get("metadata", {})
    scaling = _scaling(settings, deployment, lane)
    return {
        "template": {
            "metadata": {
                "labels": given.get("labels", {}),
                "annotations": {**given.get("annotations", {}), **scaling},
            },
            "spec": _pod(settings, deployment, template["spec"]),
        }
    }


def _scaling(settings: KnativeSettings, deployment: Deployment, lane: Lane) -> dict[str, str]:
    delay_s = min(_LONGEST_DELAY_S, math.ceil(deployment.idle_timeout_s))
    values = {
        "class": "kpa.autoscaling.knative.dev",
        "metric": "concurrency",
        "target-utilization-percentage": "100" if deployment.concurrency == 1 else "70",
        "target-burst-capacity": "-1",
        "min-scale": "0",
        "max-scale": str(lane.max_instances),
        "window": f"{max(_SHORTEST_WINDOW_S, min(_LONGEST_WINDOW_S, delay_s))}s",
        "scale-down-delay": f"{delay_s}s",
    }
    if settings.knative.initial_scale_zero:
        values["initial-scale"] = "0"
    return {
        **{f"autoscaling.knative.dev/{name}": value for name, value in values.items()},
        "serving.knative.dev/progress-deadline": settings.knative.progress_deadline,
    }


def _pod(settings: KnativeSettings, deployment: Deployment, spec: Object) -> Object:
    limits = settings.knative
    container: Object = spec["containers"][0]
    ours = {
        "threads": deployment.threads,
        "accelerator": deployment.accelerator,
        "concurrency": deployment.concurrency,
        "engine": msgspec.json.encode(deployment.engine).decode(),
        "workers": deployment.workers,
    }
    kept = [
        argument
        for argument in container.get("args", [])
        if argument.removeprefix("--").partition("=")[0] not in ours
    ]
    container["args"] = [*kept, *(f"--{name}={value}" for name, value in ours.items())]
    return {
        **spec,
        "containerConcurrency": deployment.concurrency,
        "timeoutSeconds": limits.timeout_seconds,
        "responseStartTimeoutSeconds": min(
            limits.response_start_timeout_seconds, limits.timeout_seconds
        ),
    }
