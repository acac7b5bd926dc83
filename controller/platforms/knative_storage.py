"""Whether the volumes that functions mount can be had, by claims and storage classes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from controller.platforms.knative_findings import Finding
from controller.platforms.knative_settings import KnativeSettings
from controller.platforms.kube import Object

_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_ONE_NODE = {
    "disk.csi.azure.com",
    "ebs.csi.aws.com",
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/gce-pd",
    "pd.csi.storage.gke.io",
    "rancher.io/local-path",
}
"""Provisioners of disks, whose file systems one node mounts at a time."""
_SHARED = "use a storage class that has ReadWriteMany, or store.type s3 or gcs"


def judge_claims(
    settings: KnativeSettings,
    claims: dict[str, Object] | None,
    classes: dict[str, Object] | None,
) -> Iterator[Finding]:
    """Of the claims that functions mount, and of the others of the release (Redis, say), whether
    they can be bound. ``None``: what may not be read."""
    mounted = dict.fromkeys(
        volume["persistentVolumeClaim"]["claimName"]
        for pods in settings.functions.values()
        for pool in pods.pools
        for volume in pool.template.get("spec", {}).get("volumes", [])
        if "persistentVolumeClaim" in volume
    )
    if claims is None:
        for name in mounted:
            yield Finding("unknown", f"the volume claim {name}", "claims may not be read")
        return
    for name in mounted:
        if name not in claims:
            yield Finding("failed", f"there is no volume claim {name}", "see the chart's store.pvc")
            continue
        modes = claims[name].get("spec", {}).get("accessModes", [])
        if "ReadWriteMany" not in modes:
            yield Finding("failed", f"{name} is for one node only ({', '.join(modes)})", _SHARED)
        elif _bound(claims[name]):
            yield Finding("ok", f"{name} can be used by all functions")
        else:
            yield _pending(name, claims[name], classes)
    release = settings.release
    for name, claim in claims.items():
        labels = claim["metadata"].get("labels", {})
        ours = labels.get("app.kubernetes.io/instance") == release
        if ours and name not in mounted and not _bound(claim):
            yield _pending(name, claim, classes)


def _bound(claim: Object) -> bool:
    return bool(claim.get("status", {}).get("phase") == "Bound")


def _pending(name: str, claim: Object, classes: dict[str, Object] | None) -> Finding:
    """Why a claim is not bound, as far as its class tells."""
    spec = claim.get("spec", {})
    wanted: str | None = spec.get("storageClassName")
    advice = f"kubectl describe pvc {name}"
    plain = Finding("warning", f"{name} is not bound yet", advice)
    if classes is None:
        return Finding("unknown", f"the storage class of {name}", "storage classes may not be read")
    if wanted == "":  # a volume that somebody makes by hand
        return plain
    if wanted is None:
        wanted = next((n for n, found in classes.items() if _is_default(found)), None)
        if wanted is None:
            what = f"{name} names no storage class, and the cluster has no default one"
            return Finding("failed", what, "set storageClass in the chart's values")
    if wanted not in classes:
        known = ", ".join(classes) or "none"
        return Finding("failed", f"{name}: there is no storage class {wanted}", f"there is {known}")
    provisioner = classes[wanted].get("provisioner", "")
    if "ReadWriteMany" in spec.get("accessModes", []) and provisioner in _ONE_NODE:
        what = f"{name}: the storage class {wanted} ({provisioner}) has no ReadWriteMany"
        return Finding("failed", what, _SHARED)
    if classes[wanted].get("volumeBindingMode") == "WaitForFirstConsumer":
        return Finding("ok", f"{name} will be bound when its first pod comes")
    return plain


def _is_default(found: Object) -> bool:
    annotations = found["metadata"].get("annotations", {})
    return bool(annotations.get(_DEFAULT) == "true")
