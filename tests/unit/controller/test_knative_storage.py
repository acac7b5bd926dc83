"""What claims and storage classes say of the volumes that functions mount."""

from __future__ import annotations

from typing import Any

import pytest

from controller.platforms.knative_findings import Finding
from controller.platforms.knative_settings import KnativeSettings
from controller.platforms.knative_storage import judge_claims

NAME = "rlhfless-inputs"
EBS = {"gp3": {"metadata": {}, "provisioner": "ebs.csi.aws.com"}}
EFS = {"efs": {"metadata": {}, "provisioner": "efs.csi.aws.com"}}
LATE = {"late": {**EFS["efs"], "volumeBindingMode": "WaitForFirstConsumer"}}
DEFAULT = {"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}


def settings(*, mounted: bool = True) -> KnativeSettings:
    volume = {"name": "inputs", "persistentVolumeClaim": {"claimName": NAME, "readOnly": True}}
    template = {"spec": {"volumes": [volume] if mounted else []}}
    pool = {"name": "on-demand", "maxInstances": 1, "template": template}
    return KnativeSettings.model_validate(
        {"namespace": "rlhf", "release": "demo", "functions": {"reward": {"pools": [pool]}}}
    )


def claim(phase: str = "Pending", mode: str = "ReadWriteMany", **spec: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/instance": "demo"}
    told = {"accessModes": [mode], **spec}
    return {"metadata": {"labels": labels}, "spec": told, "status": {"phase": phase}}


def found(one: dict[str, Any] | None, classes: Any = None, **told: Any) -> Finding:
    claims = {} if one is None else {NAME: one}
    (finding,) = judge_claims(settings(**told), claims, classes)
    return finding


@pytest.mark.parametrize(
    ("one", "classes", "verdict", "said"),
    [
        (None, EFS, "failed", "there is no volume claim"),
        (claim("Bound", "ReadWriteOnce"), EFS, "failed", "for one node only"),
        (claim("Bound", storageClassName="gone"), {}, "ok", "can be used"),
        (claim(storageClassName="gone"), EFS, "failed", "there is no storage class gone"),
        (claim(), EFS, "failed", "the cluster has no default one"),
        (claim(), {"gp3": {**EBS["gp3"], **DEFAULT}}, "failed", "(ebs.csi.aws.com) has no ReadWri"),
        (claim(), {"efs": {**EFS["efs"], **DEFAULT}}, "warning", "not bound yet"),
        (claim(storageClassName="late"), LATE, "ok", "when its first pod comes"),
        (claim(storageClassName=""), {}, "warning", "not bound yet"),
        (claim(storageClassName="efs"), None, "unknown", "the storage class of"),
    ],
)
def test_a_claim_that_functions_mount(one: Any, classes: Any, verdict: str, said: str) -> None:
    finding = found(one, classes)
    assert (finding.verdict, said in finding.what) == (verdict, True), finding
    assert finding.advice or verdict == "ok" or finding.verdict == "unknown"


def test_claims_that_may_not_be_read() -> None:
    (finding,) = judge_claims(settings(), None, None)
    assert finding.verdict == "unknown"


def test_claims_of_the_release_that_no_function_mounts() -> None:
    """Such as Redis's: a disk is good for it, but there must be one."""
    disk = claim(mode="ReadWriteOnce", storageClassName="gp3")
    assert found(disk, EBS, mounted=False).verdict == "warning"
    assert found(disk, {}, mounted=False).verdict == "failed"
    assert not list(judge_claims(settings(mounted=False), {NAME: claim("Bound")}, EBS))
    disk["metadata"]["labels"] = {}
    assert not list(judge_claims(settings(mounted=False), {NAME: disk}, EBS))
