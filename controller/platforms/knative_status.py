"""What the API server's objects say of a function: where it is reached, which pods it has, and
what keeps it from running. Pure.

A ``Trouble`` is told to a person in the words of Kubernetes, which are those that a search finds.
Some cannot pass by waiting (``fatal``): an image that is not there, a process that ends at once.
Others may: a node that is being added, a quota that is used up for now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from controller.platforms.kube import Object
from rlhfless.errors import CapacityError, InternalError, RlhflessError, UserError

PodPhase = Literal["waiting", "cold", "ready", "stopping", "gone"]
_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_UNCURED = {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", *_CONFIG}
"""``ErrImagePull`` comes first and may be a registry's hiccup."""


@dataclass(frozen=True)
class Trouble:
    """``family``: the error that it becomes when waiting has no end."""

    detail: str
    family: type[RlhflessError] = CapacityError
    hint: str | None = None
    fatal: bool = False

    def error(self) -> RlhflessError:
        return self.family(self.detail, hint=self.hint)


@dataclass(frozen=True)
class ServiceView:
    """``url``: where calls go, None until its route is there."""

    url: str | None = None
    trouble: Trouble | None = None


@dataclass(frozen=True)
class PodView:
    """``waiting``: no node has it yet, so it costs nothing; ``gone``: its process has ended."""

    name: str
    service: str
    ip: str
    phase: PodPhase
    trouble: Trouble | None = None


def read_service(service: Object) -> ServiceView:
    status = service.get("status", {})
    if status.get("observedGeneration") != service["metadata"]["generation"]:
        return ServiceView()  # of what it was before we applied it
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    ready = conditions.get("Ready", {})
    name = service["metadata"]["name"]
    trouble = None
    if ready.get("status") == "False":
        trouble = _service_trouble(name, ready, conditions)
    url = (status.get("address") or {}).get("url") or status.get("url")
    routed = conditions.get("RoutesReady", {}).get("status") == "True"
    return ServiceView(url if routed else None, trouble)


def _service_trouble(name: str, ready: Object, conditions: dict[str, Object]) -> Trouble:
    deeper = conditions.get("ConfigurationsReady", {})
    told = deeper if deeper.get("status") == "False" else ready
    reason, message = told.get("reason", "Unknown"), told.get("message", "")
    detail = f"Knative's service {name} is not ready ({reason}): {message}"
    if "Unable to fetch image" in message or "ContainerMissing" in (reason, ready.get("reason")):
        return Trouble(detail, UserError, "see the function's image in the chart's values", True)
    if "quota" in message:
        return Trouble(detail, CapacityError, "raise the namespace's ResourceQuota, or wait")
    return Trouble(detail)


def read_pod(pod: Object) -> PodView:
    metadata, status = pod["metadata"], pod.get("status", {})
    name = metadata["name"]
    phase: PodPhase = "cold"
    if _ended(status):
        phase = "gone"
    elif metadata.get("deletionTimestamp"):
        phase = "stopping"
    elif not pod.get("spec", {}).get("nodeName"):
        phase = "waiting"
    elif _condition(status, "Ready").get("status") == "True":
        phase = "ready"
    service = metadata.get("labels", {}).get("serving.knative.dev/service", "")
    trouble = None if phase in ("ready", "stopping") else _pod_trouble(name, status)
    return PodView(name, service, status.get("podIP", ""), phase, trouble)


def _ended(status: Object) -> bool:
    """All that ran in it ended for good, or its node says that it was evicted."""
    return status.get("phase") in ("Succeeded", "Failed")


def _pod_trouble(name: str, status: Object) -> Trouble | None:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        message = scheduled.get("message", "")
        return Trouble(
            f"no node takes the pod {name}: {message}",
            hint="a node may be on its way; if none comes, see the node pool's bounds, the quota "
            "of the cloud, node selectors and tolerations",
        )
    if status.get("phase") == "Failed" and status.get("reason"):
        detail = f"the pod {name} was ended ({status['reason']}): {status.get('message', '')}"
        return Trouble(detail)
    for container in status.get("containerStatuses", []):
        found = _container_trouble(name, container)
        if found is not None:
            return found
    return None


def _container_trouble(pod: str, container: Object) -> Trouble | None:
    waiting = container.get("state", {}).get("waiting", {})
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    detail = f"the pod {pod} cannot start ({reason}): {message}"
    if reason in _IMAGE:
        hint = "see the function's image and imagePullSecrets in the chart's values"
        return Trouble(detail, UserError, hint, reason in _UNCURED)
    if reason in _CONFIG:
        hint = "see the function's secrets and env in the chart's values"
        return Trouble(detail, UserError, hint, fatal=True)
    ended: dict[str, Any] = container.get("lastState", {}).get("terminated", {})
    if reason == "CrashLoopBackOff" or (ended and container.get("restartCount", 0) > 1):
        code = ended.get("exitCode", "unknown")
        why = f"exit code {code}, {ended.get('reason', 'Error')}"
        said = ended.get("message", "")
        family = CapacityError if ended.get("reason") == "OOMKilled" else InternalError
        detail = f"the pod {pod} ends as soon as it starts ({why}){': ' + said if said else ''}"
        return Trouble(detail, family, f"see kubectl logs {pod} -c {container['name']} -p", True)
    return None


def _condition(status: Object, kind: str) -> Object:
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})
