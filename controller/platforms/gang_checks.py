"""Whether a cluster can run training over several nodes, judged by what it says of itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from controller.platforms.knative_findings import Finding, Rule
from controller.platforms.knative_settings import KnativeSettings
from controller.platforms.kube import Object

GANG_RULES: tuple[Rule, ...] = (
    *((verb, "batch", "jobs") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *((verb, "", "services") for verb in ("get", "create")),
    ("list", "kueue.x-k8s.io", "workloads"),
)
"""What the controller does in its namespace besides."""


def judge_gang(
    settings: KnativeSettings, kueue: bool, queues: dict[str, Object] | None
) -> Iterator[Finding]:
    """``kueue``: it is installed; ``queues``: LocalQueues of the namespace by name, None where they
    may not be read."""
    if settings.training.gang != "kueue":
        return
    name, where = settings.training.kueue_queue, f"in the namespace {settings.namespace}"
    if not kueue:
        advice = "install Kueue, or set knative.training.gang to none in the chart's values"
        yield Finding("failed", "Kueue is not installed", advice)
    elif queues is None:
        yield Finding("unknown", f"Kueue's LocalQueue {name}", "LocalQueues may not be read")
    elif name not in queues:
        others = ", ".join(sorted(queues)) or "none"
        advice = f"make it, or set knative.training.kueueQueue to one that is there: {others}"
        yield Finding("failed", f"there is no LocalQueue {name} {where}", advice)
    else:
        yield _active(name, queues[name])


def _active(name: str, queue: Object) -> Finding:
    conditions = queue.get("status", {}).get("conditions", [])
    active: Object = next((c for c in conditions if c["type"] == "Active"), {})
    if active.get("status") == "False":
        what = f"the LocalQueue {name} takes nothing: {active.get('message', '')}"
        return Finding("failed", what, f"kubectl describe localqueue {name}")
    return Finding("ok", f"gangs are queued in the LocalQueue {name}")
