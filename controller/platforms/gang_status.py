"""What the API server's objects say of a gang: its Job, its pods, and Kueue's view of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from controller.platforms.gang_manifest import GANG, SHAPE
from controller.platforms.knative_manifest import HOLDER
from controller.platforms.knative_status import PodView, Trouble, read_pod
from controller.platforms.kube import Object
from rlhfless.errors import CapacityError, InternalError

_INDEX = "batch.kubernetes.io/job-completion-index"
_FAULTS = {"OOMKilled": CapacityError}


@dataclass(frozen=True)
class JobView:
    """``suspended``: Kueue has not admitted it, or has taken it back; ``ended``: why it is over,
    empty while it is not."""

    name: str
    holder: str
    shape: str
    suspended: bool
    ended: str = ""


@dataclass(frozen=True)
class Member:
    """One pod of a gang. ``index``: 0 is the leader's; ``fault``: why its process ended, where it
    did so of itself."""

    view: PodView
    gang: str
    index: int
    fault: Trouble | None = None


def read_job(job: Object) -> JobView:
    metadata, told = job["metadata"], job["metadata"].get("annotations", {})
    ended = "it is being deleted" if metadata.get("deletionTimestamp") else ""
    for condition in job.get("status", {}).get("conditions", []):
        over = condition["type"] in ("Failed", "FailureTarget", "Complete")
        if over and condition["status"] == "True":
            why = f"{condition.get('reason', '')}: {condition.get('message', '')}"
            ended = f"its Job is over ({why.strip(': ') or condition['type']})"
    return JobView(
        metadata["name"],
        told.get(HOLDER, ""),
        told.get(SHAPE, ""),
        bool(job["spec"].get("suspend")),
        ended,
    )


def read_member(pod: Object) -> Member | None:
    """None: it is of no gang."""
    metadata = pod["metadata"]
    gang = metadata.get("labels", {}).get(GANG)
    if gang is None:
        return None
    index = metadata.get("annotations", {}).get(_INDEX) or metadata["labels"].get(_INDEX, "-1")
    view = replace(read_pod(pod), service=gang)
    return Member(view, gang, int(index), _fault(pod))


def _fault(pod: Object) -> Trouble | None:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    if any(c["type"] == "DisruptionTarget" for c in status.get("conditions", [])):
        return None  # its node was taken from it
    for container in status.get("containerStatuses", []):
        ended = container.get("state", {}).get("terminated")
        if ended and ended.get("exitCode"):
            why = f"exit code {ended['exitCode']}, {ended.get('reason', 'Error')}"
            said = ended.get("message", "")
            return Trouble(
                f"the pod {name} ends as soon as it starts ({why}){': ' + said if said else ''}",
                _FAULTS.get(ended.get("reason", ""), InternalError),
                f"see kubectl logs {name}",
                fatal=True,
            )
    return None


def read_workload(workload: Object) -> Trouble | None:
    """Why Kueue does not admit it; None: it does."""
    status = workload.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    if conditions.get("Admitted", {}).get("status") == "True":
        return None
    queue = workload.get("spec", {}).get("queueName", "")
    quota = conditions.get("QuotaReserved", {})
    evicted = conditions.get("Evicted", {})
    if quota.get("status") == "True":
        checks = [c for c in status.get("admissionChecks", []) if c.get("state") != "Ready"]
        waits = ", ".join(
            f"{c['name']} ({c.get('state', 'Pending')}) {c.get('message', '')}".strip()
            for c in checks
        )
        return Trouble(f"Kueue's queue {queue} waits for {waits or 'admission'}")
    if not quota.get("message"):
        return Trouble(f"Kueue's queue {queue} has not come to this gang yet")
    detail = f"Kueue's queue {queue} does not admit the gang: {quota['message']}"
    if evicted.get("status") == "True":
        detail += f" ({evicted.get('message', evicted.get('reason', 'Evicted'))})"
    if quota.get("reason") == "Inadmissible":
        hint = "see knative.training.kueueQueue in the chart's values, and the queue itself"
        return Trouble(detail, hint=hint)
    return Trouble(detail, hint="raise the quota of its ClusterQueue, or wait")


NOT_NOTED = Trouble(
    "Kueue has not taken note of the gang",
    hint="is Kueue running, and does it manage Jobs of this namespace?",
)
