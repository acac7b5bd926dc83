"""Whether a cluster can run our functions, judged by what it says of itself. Pure.

Knative refuses, by flags that are off by default, much of what a GPU function needs; it says so
only when a Service is applied. Here it is said before, with what to change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from controller.platforms.gang_checks import GANG_RULES, judge_gang
from controller.platforms.knative_findings import Finding, Rule
from controller.platforms.knative_settings import FunctionPods, KnativeSettings, Pool
from controller.platforms.knative_storage import judge_claims
from controller.platforms.kube import Object

FEATURES, AUTOSCALER, DEFAULTS = "config-features", "config-autoscaler", "config-defaults"
SYSTEM = "knative-serving"
DEFAULT_TIMEOUT_S = 600
RULES: tuple[Rule, ...] = (
    *(
        (verb, "serving.knative.dev", "services")
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ),
    *((verb, "", "pods") for verb in ("get", "list", "watch")),
    ("get", "", "pods/log"),
)
"""What the controller does in its namespace in any case."""
_FLAGS = {
    "nodeSelector": "nodeselector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "priorityClassName": "priorityclassname",
    "runtimeClassName": "runtimeclassname",
    "securityContext": "securitycontext",
    "topologySpreadConstraints": "topologyspreadconstraints",
    "initContainers": "init-containers",
    "schedulerName": "schedulername",
}
"""Fields of a pod that need a flag ``kubernetes.podspec-...``."""


@dataclass(frozen=True)
class Facts:
    """What a cluster told. None: it may not be read by whoever asked.

    ``maps``: data of Knative's ConfigMaps; ``rules``: whether the controller may do each;
    ``claims``: persistent volume claims of the namespace by name; ``storage_classes``: by name;
    ``queues``: Kueue's LocalQueues, where ``kueue`` is there.
    """

    knative: bool
    maps: dict[str, Mapping[str, str] | None] = field(default_factory=dict)
    nodes: list[Object] | None = None
    rules: dict[Rule, bool] | None = field(default_factory=dict)
    claims: dict[str, Object] | None = None
    storage_classes: dict[str, Object] | None = None
    kueue: bool = False
    queues: dict[str, Object] | None = None


def rules(settings: KnativeSettings) -> tuple[Rule, ...]:
    """What the controller must be allowed to do in its namespace."""
    return RULES + (GANG_RULES if settings.training.gang == "kueue" else ())


def judge(settings: KnativeSettings, facts: Facts) -> list[Finding]:
    """All findings, good ones too, in the order in which one would mend them."""
    if not facts.knative:
        advice = "install Knative Serving, or choose another platform in the chart's values"
        return [Finding("failed", "Knative Serving is not installed", advice)]
    return [
        Finding("ok", "Knative Serving is installed"),
        *_rights(settings, facts),
        *_features(settings, facts.maps.get(FEATURES)),
        *_autoscaler(settings, facts.maps.get(AUTOSCALER)),
        _timeouts(settings, facts.maps.get(DEFAULTS)),
        *_accelerators(settings, facts.nodes),
        *judge_claims(settings, facts.claims, facts.storage_classes),
        *judge_gang(settings, facts.kueue, facts.queues),
    ]


def _rights(settings: KnativeSettings, facts: Facts) -> Iterator[Finding]:
    where = f"in the namespace {settings.namespace}"
    if facts.rules is None:
        advice = "it takes the right to create localsubjectaccessreviews"
        yield Finding("unknown", f"what the controller may do {where}", advice)
        return
    missing = [rule for rule, allowed in facts.rules.items() if not allowed]
    if not missing:
        yield Finding("ok", f"the controller may manage functions {where}")
    for verb, group, resource in missing:
        what = f"the controller may not {verb} {resource}{'.' + group if group else ''} {where}"
        yield Finding("failed", what, "bind the chart's Role to the controller's service account")


def _features(settings: KnativeSettings, data: Mapping[str, str] | None) -> Iterator[Finding]:
    needed = dict.fromkeys(
        flag for pods in settings.functions.values() for pool in pods.pools for flag in flags(pool)
    )
    if data is None:
        yield _unreadable(FEATURES, f"needs {', '.join(needed) or 'nothing'}")
        return
    for flag in needed:
        default = "enabled" if flag.endswith("volumes-emptydir") else "disabled"
        if data.get(flag, default).lower() in ("enabled", "allowed"):
            yield Finding("ok", f"{flag} is on")
        else:
            yield Finding("failed", f"{flag} is off", _patch(FEATURES, flag, "enabled"))


def flags(pool: Pool) -> Iterator[str]:
    """Feature flags of Knative that a pool's pods need."""
    spec: Object = pool.template.get("spec", {})
    yield from (f"kubernetes.podspec-{flag}" for name, flag in _FLAGS.items() if spec.get(name))
    for volume in spec.get("volumes", []):
        if "emptyDir" in volume:
            yield "kubernetes.podspec-volumes-emptydir"
        if "persistentVolumeClaim" in volume:
            yield "kubernetes.podspec-persistent-volume-claim"
            if not volume["persistentVolumeClaim"].get("readOnly"):
                yield "kubernetes.podspec-persistent-volume-write"
    for container in spec.get("containers", []):
        if any("fieldRef" in item.get("valueFrom", {}) for item in container.get("env", [])):
            yield "kubernetes.podspec-fieldref"


def _autoscaler(settings: KnativeSettings, data: Mapping[str, str] | None) -> Iterator[Finding]:
    if data is None:
        yield _unreadable(AUTOSCALER, "needs allow-zero-initial-scale: true")
        return
    if data.get("enable-scale-to-zero", "true").lower() != "true":
        advice = _patch(AUTOSCALER, "enable-scale-to-zero", "true")
        yield Finding("failed", "Knative does not scale to zero here: idle GPUs stay", advice)
    zero = data.get("allow-zero-initial-scale", "false").lower() == "true"
    if settings.knative.initial_scale_zero and not zero:
        advice = _patch(AUTOSCALER, "allow-zero-initial-scale", "true")
        yield Finding("failed", "Knative does not allow functions that begin without a pod", advice)
    limit = int(data.get("max-scale-limit", "0"))
    for name, pods in settings.functions.items():
        most = max(pool.max_instances for pool in pods.pools)
        if limit and most > limit:
            advice = _patch(AUTOSCALER, "max-scale-limit", str(most))
            yield Finding("failed", f"{name} may have {most} pods, Knative allows {limit}", advice)
    if zero and not limit:
        yield Finding("ok", "functions scale from and to zero")


def _timeouts(settings: KnativeSettings, data: Mapping[str, str] | None) -> Finding:
    wanted = settings.knative.timeout_seconds
    name = "max-revision-timeout-seconds"
    if data is None:
        return _unreadable(DEFAULTS, f"needs {name} of at least {wanted}")
    most = int(data.get(name, str(DEFAULT_TIMEOUT_S)))
    if most < wanted:
        what = f"a request may take {most} s here, functions want {wanted}"
        return Finding("failed", what, _patch(DEFAULTS, name, str(wanted)))
    if wanted <= DEFAULT_TIMEOUT_S:
        advice = (
            f"where steps train for longer, raise {name} of {SYSTEM}/{DEFAULTS} and the chart's "
            "knative.timeoutSeconds"
        )
        return Finding("warning", f"a training step must end within {wanted} s", advice)
    return Finding("ok", f"a request may take {wanted} s")


def _accelerators(settings: KnativeSettings, nodes: list[Object] | None) -> Iterator[Finding]:
    for name, pods in settings.functions.items():
        if not pods.count:
            continue
        need = f"{pods.count} {pods.accelerator_resource}"
        for pool in pods.pools:
            if nodes is None:
                yield Finding("unknown", f"nodes with {need} for {name}", "nodes may not be read")
                continue
            fit = sum(_fits(node, pods, pool) for node in nodes)
            if fit:
                yield Finding("ok", f"{fit} nodes with {need} for {name} ({pool.name})")
            else:
                what = f"no node with {need} for {name} ({pool.name})"
                advice = (
                    "fine where the cluster adds such nodes on demand; else see the node selector, "
                    "the tolerations and the device plugin"
                )
                yield Finding("warning", what, advice)


def _fits(node: Object, pods: FunctionPods, pool: Pool) -> bool:
    labels = node["metadata"].get("labels", {})
    spec: Object = pool.template.get("spec", {})
    wanted = spec.get("nodeSelector", {})
    there = int(node.get("status", {}).get("allocatable", {}).get(pods.accelerator_resource, "0"))
    taints = node.get("spec", {}).get("taints", [])
    return (
        there >= pods.count
        and wanted.items() <= labels.items()
        and all(_tolerated(taint, spec.get("tolerations", [])) for taint in taints)
    )


def _tolerated(taint: Mapping[str, str], tolerations: Iterable[Mapping[str, str]]) -> bool:
    if taint.get("effect") == "PreferNoSchedule":
        return True
    for toleration in tolerations:
        key = toleration.get("key") in (None, taint["key"])
        value = toleration.get("operator", "Equal") == "Exists" or (
            toleration.get("value", "") == taint.get("value", "")
        )
        if key and value and toleration.get("effect") in (None, taint.get("effect")):
            return True
    return False


def _unreadable(name: str, need: str) -> Finding:
    return Finding("unknown", f"{SYSTEM}/{name} may not be read", f"{need}; ask its administrator")


def _patch(name: str, key: str, value: str) -> str:
    return (
        f"kubectl patch configmap {name} -n {SYSTEM} --type merge "
        f'-p \'{{"data":{{"{key}":"{value}"}}}}\''
    )
