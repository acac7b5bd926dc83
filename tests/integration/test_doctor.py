"""``rlhfless doctor --cluster`` against clusters that lack this and that."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from controller.platforms.knative_settings import KnativeSettings, Owner
from tests.support.knative_platforms import kubeconfig, settings, with_gangs
from tests.support.kube_api import KubeApi

pytestmark = pytest.mark.slow
Prepare = Callable[[KubeApi], None]
KNATIVE = ("api/v1", "configmaps", "knative-serving")


def config(api: KubeApi, name: str, **data: str) -> None:
    keyed = {key.replace("__", ".").replace("_", "-"): value for key, value in data.items()}
    api.store.create(KNATIVE, {"metadata": {"name": name}, "data": keyed})


def good(api: KubeApi) -> None:
    config(api, "config-features", kubernetes__podspec_nodeselector="Enabled")
    config(api, "config-autoscaler", allow_zero_initial_scale="true")
    config(api, "config-defaults", max_revision_timeout_seconds="3600")
    api.store.create(
        ("api/v1", "nodes", ""),
        {
            "metadata": {"name": "gpu-1", "labels": {"gpu": "h100"}},
            "status": {"allocatable": {"nvidia.com/gpu": "8"}},
        },
    )


def bare(api: KubeApi) -> None:
    """Knative as it comes, and an account without a Role."""
    api.denied |= {("patch", "services"), ("list", "nodes"), ("get", "configmaps")}


def wanted() -> KnativeSettings:
    told = settings(function={"accelerator": "h100", "count": 2}, timeoutSeconds=1200)
    for pods in told.functions.values():
        for pool in pods.pools:
            pool.template["spec"]["nodeSelector"] = {"gpu": "h100"}
    return told


def doctor(
    folder: Path, prepare: Prepare, told: KnativeSettings, *options: str
) -> subprocess.CompletedProcess[str]:
    async def run() -> subprocess.CompletedProcess[str]:
        async with KubeApi().serving() as api:
            document = told.model_dump_json(by_alias=True)
            labels = {"app.kubernetes.io/instance": told.release}
            api.store.create(
                ("api/v1", "configmaps", told.namespace),
                {
                    "metadata": {"name": "rlhfless-platform", "labels": labels},
                    "data": {"platform.yaml": document},
                },
            )
            prepare(api)
            config_file = folder / "config"
            config_file.write_text(yaml.safe_dump(kubeconfig(api)))
            arguments = [sys.executable, "-m", "rlhfless.cli.main", "doctor", "--cluster", *options]
            return await asyncio.to_thread(
                subprocess.run,
                arguments,
                env={"KUBECONFIG": str(config_file), "PATH": "/usr/bin", "HOME": str(folder)},
                capture_output=True,
                text=True,
                check=False,
            )

    return asyncio.run(run())


def test_a_cluster_that_has_everything(tmp_path: Path) -> None:
    done = doctor(tmp_path, good, wanted(), "--json")
    assert done.returncode == 0, done.stderr
    assert {finding["verdict"] for finding in json.loads(done.stdout)} == {"ok"}


def test_a_cluster_that_lacks_much_is_told_how_to_mend_it(tmp_path: Path) -> None:
    done = doctor(tmp_path, lambda api: None, wanted())
    assert done.returncode == 2, done.stderr
    assert "FAIL  kubernetes.podspec-nodeselector is off" in done.stdout
    assert "kubectl patch configmap config-features -n knative-serving" in done.stdout
    assert "FAIL  Knative does not allow functions that begin without a pod" in done.stdout
    assert "FAIL  a request may take 600 s here, functions want 1200" in done.stdout
    assert "warn  no node with 2 nvidia.com/gpu for rollout (on-demand)" in done.stdout


def test_what_may_not_be_read_is_left_open(tmp_path: Path) -> None:
    done = doctor(tmp_path, bare, wanted())
    assert done.returncode == 2, done.stderr
    assert "FAIL  the controller may not patch services.serving.knative.dev" in done.stdout
    assert "?     knative-serving/config-features may not be read" in done.stdout
    assert "?     nodes with 2 nvidia.com/gpu for rollout" in done.stdout


ACCOUNT = "system:serviceaccount:default:rlhfless-controller"


def owned() -> KnativeSettings:
    return wanted().model_copy(update={"owner": Owner(name="controller")})


def with_a_controller(api: KubeApi) -> None:
    good(api)
    spec = {"template": {"spec": {"serviceAccountName": "rlhfless-controller"}}}
    key = ("apis/apps/v1", "deployments", "default")
    api.store.create(key, {"metadata": {"name": "controller"}, "spec": spec})
    api.others[ACCOUNT] = {("patch", "services")}


def test_it_is_the_controllers_rights_that_count(tmp_path: Path) -> None:
    """Whoever looks may do everything."""
    done = doctor(tmp_path, with_a_controller, owned())
    assert done.returncode == 2, done.stderr
    assert "FAIL  the controller may not patch services.serving.knative.dev" in done.stdout


def test_the_controller_may_look_itself(tmp_path: Path) -> None:
    def prepare(api: KubeApi) -> None:
        with_a_controller(api)
        api.asks, api.others = ACCOUNT, {}
        api.denied = {("create", "localsubjectaccessreviews")}

    done = doctor(tmp_path, prepare, owned())
    assert done.returncode == 0, done.stdout
    assert "ok    the controller may manage functions" in done.stdout


def test_who_may_not_know_the_controllers_rights_is_told(tmp_path: Path) -> None:
    def prepare(api: KubeApi) -> None:
        with_a_controller(api)
        api.denied = {("create", "localsubjectaccessreviews")}

    done = doctor(tmp_path, prepare, owned())
    assert done.returncode == 0, done.stdout
    assert "?     what the controller may do in the namespace default" in done.stdout


def queue(api: KubeApi, active: str = "True") -> None:
    said = {"type": "Active", "status": active, "message": "its ClusterQueue is missing"}
    key = ("apis/kueue.x-k8s.io/v1beta1", "localqueues", "default")
    api.store.create(key, {"metadata": {"name": "gangs"}, "status": {"conditions": [said]}})


def test_a_cluster_with_a_queue_for_gangs(tmp_path: Path) -> None:
    def prepare(api: KubeApi) -> None:
        good(api)
        queue(api)
        api.unknown.add("apis/kueue.x-k8s.io/v1beta2")

    done = doctor(tmp_path, prepare, with_gangs(wanted()), "--json")
    assert done.returncode == 0, done.stdout
    assert "gangs are queued in the LocalQueue gangs" in done.stdout


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (
            lambda api: api.unknown.update(
                {"apis/kueue.x-k8s.io/v1beta2", "apis/kueue.x-k8s.io/v1beta1"}
            ),
            "FAIL  Kueue is not installed",
        ),
        (lambda api: None, "FAIL  there is no LocalQueue gangs in the namespace default"),
        (lambda api: api.denied.add(("list", "localqueues")), "?     Kueue's LocalQueue gangs"),
        (
            lambda api: [queue(api, "False"), api.unknown.add("apis/kueue.x-k8s.io/v1beta2")],
            "FAIL  the LocalQueue gangs takes nothing: its ClusterQueue is missing",
        ),
        (
            lambda api: api.denied.add(("create", "jobs")),
            "FAIL  the controller may not create jobs.batch",
        ),
    ],
    ids=["kueue", "queue", "unread", "inactive", "rights"],
)
def test_what_gangs_lack_is_told(tmp_path: Path, prepare: Prepare, told: str) -> None:
    done = doctor(tmp_path, prepare, with_gangs(wanted()))
    assert done.returncode == 2, done.stderr
    assert told in done.stdout


def test_volumes_that_cannot_be_had(tmp_path: Path) -> None:
    told = wanted()
    claim = {"claimName": "inputs", "readOnly": True}
    for pods in told.functions.values():
        for pool in pods.pools:
            pool.template["spec"]["volumes"] = [{"name": "i", "persistentVolumeClaim": claim}]

    def prepare(api: KubeApi) -> None:
        good(api)
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "nfs"}
        claims = ("api/v1", "persistentvolumeclaims", told.namespace)
        api.store.create(claims, {"metadata": {"name": "inputs"}, "spec": spec})
        disks = {"metadata": {"name": "gp3"}, "provisioner": "ebs.csi.aws.com"}
        api.store.create(("apis/storage.k8s.io/v1", "storageclasses", ""), disks)
        api.denied.add(("get", "pods/log"))

    done = doctor(tmp_path, prepare, told)
    assert done.returncode == 2, done.stderr
    assert "FAIL  inputs: there is no storage class nfs" in done.stdout
    assert "there is gp3" in done.stdout
    assert "FAIL  the controller may not get pods/log in the namespace" in done.stdout


def test_no_release_is_there(tmp_path: Path) -> None:
    done = doctor(tmp_path, good, wanted(), "--release", "another")
    assert done.returncode == 2
    assert "no release another" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_cluster_is_configured(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlhfless.cli.main", "doctor", "--cluster"],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin", "KUBECONFIG": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no Kubernetes cluster is configured" in done.stderr
