"""``platform.yaml`` is understood by the platform that reads it, and its pods by Knative."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from controller.platforms import ray_settings
from controller.platforms.base import Deployment
from controller.platforms.gang_manifest import address_manifest, job_manifest, needs_gang
from controller.platforms.knative_checks import flags
from controller.platforms.knative_manifest import as_here, lanes, service_manifest
from controller.platforms.knative_settings import KnativeSettings, load_settings
from controller.platforms.ray_settings import serve_url, settings_of_gangs
from functions.host import TOKEN_VARIABLE, parse
from rlhfless.messages import FUNCTION_NAMES
from tests.support.helm import DIGESTS, EXAMPLES, ROOT, Helm, Rendered
from tests.support.manifests import KUBERNETES, check_manifest

KNATIVE = {"platform": "knative"}
CLOUDS = [path for path in EXAMPLES if path.stem in ("gke", "eks-spot")]


def _platform(rendered: Rendered) -> dict[str, Any]:
    config = rendered.one("ConfigMap", "demo-rlhfless-platform")
    loaded: dict[str, Any] = yaml.safe_load(config["data"]["platform.yaml"])
    return loaded


def _settings(rendered: Rendered, folder: Path) -> KnativeSettings:
    path = folder / "platform.yaml"
    path.write_text(yaml.safe_dump(_platform(rendered)), encoding="utf-8")
    return load_settings(str(path))


@pytest.mark.parametrize("example", [None, *CLOUDS], ids=lambda p: p.stem if p else "defaults")
def test_its_services_are_valid(helm: Helm, example: Path | None, tmp_path: Path) -> None:
    """The whole way: values, chart, the platform's settings, what the API server is sent."""
    values = KNATIVE | (DIGESTS if example else {"functions.rollout.spot.enabled": "true"})
    settings = _settings(helm.render(values, [example] if example else []), tmp_path)
    assert set(settings.functions) == set(FUNCTION_NAMES)
    for name, pods in settings.functions.items():
        here = as_here(Deployment(function=name, max_instances=100), settings)
        found = lanes(here, pods)
        assert found
        for lane in found:
            manifest = service_manifest(settings, "job", here, lane, "holder")
            check_manifest(manifest)
            assert manifest["metadata"]["namespace"] == "rlhf"


def test_a_gangs_job_and_its_address_are_valid(helm: Helm, tmp_path: Path) -> None:
    """And its pods are those that the policy of the chart selects as ranks."""
    values = {
        "knative.training.gang": "kueue",
        "knative.training.kueueQueue": "gpus",
        "knative.training.nodes": "4",
        "functions.training.accelerator": "h100",
        "functions.training.count": "8",
    }
    rendered = helm.render(KNATIVE | values)
    settings = _settings(rendered, tmp_path)
    assert settings.training.nodes == 4
    asked = Deployment("training", accelerator="h100", workers=16)
    assert needs_gang(asked, settings)
    here = as_here(asked, settings, one_pod=False)
    job = job_manifest(settings, "job", here, "fn-abc-training-1", "holder")
    check_manifest(job)
    check_manifest(address_manifest({**job, "metadata": {**job["metadata"], "uid": "u"}}))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    ranks = rendered.one("NetworkPolicy", "demo-rlhfless-ranks")["spec"]["podSelector"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert ranks["matchLabels"].items() <= labels.items()
    assert "rlhfless.io/gang" in labels
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert "livenessProbe" not in container  # a follower answers none


def test_gangs_on_ray_beside_knative(helm: Helm, tmp_path: Path) -> None:
    values = {
        "knative.training.gang": "ray",
        "ray.address": "http://head.ray:8265",
        "ray.namespace": "ray",
        "functions.training.accelerator": "h100",
        "functions.training.count": "8",
        "functions.training.ray.cpus": "4",
    }
    rendered = helm.render(KNATIVE | values)
    settings = _settings(rendered, tmp_path)
    assert needs_gang(Deployment("training", accelerator="h100", workers=16), settings)
    on_ray = settings_of_gangs(settings)
    assert serve_url(on_ray.ray) == "http://head.ray:8000"
    assert on_ray.functions["training"].resources.cpus == 4
    policy = rendered.one("NetworkPolicy", "demo-rlhfless-controller")["spec"]
    peers = [peer for rule in policy["egress"] for peer in rule["to"]]
    there = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ray"}}}
    assert there in peers
    (role,) = rendered.of("Role")
    assert not [rule for rule in role["rules"] if "batch" in rule["apiGroups"]]


def test_a_misspelt_field_of_a_service_is_refused(helm: Helm, tmp_path: Path) -> None:
    settings = _settings(helm.render(KNATIVE), tmp_path)
    here = as_here(Deployment(function="reward"), settings)
    lane = lanes(here, settings.functions["reward"])[0]
    manifest = service_manifest(settings, "job", here, lane, "holder")
    manifest["spec"]["template"]["spec"]["timeoutSecondz"] = 600
    with pytest.raises(jsonschema.ValidationError):
        check_manifest(manifest)


def test_templates_are_pods_for_jobs_too(helm: Helm) -> None:
    for function in _platform(helm.render(KNATIVE))["functions"].values():
        for pool in function["pools"]:
            pod = {"apiVersion": "v1", "kind": "Pod", **pool["template"]}
            kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_functions_understand_their_command_line(
    helm: Helm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, function in _platform(helm.render(KNATIVE))["functions"].items():
        container = function["pools"][0]["template"]["spec"]["containers"][0]
        assert container["command"] == ["python", "-m", "functions.host"]
        assert container["env"][0]["name"] == TOKEN_VARIABLE
        monkeypatch.setenv(TOKEN_VARIABLE, "token")
        config = parse(container["args"])
        assert config.function == name
        assert config.port == container["ports"][0]["containerPort"]
        assert config.workdir == "/work"


def test_the_owner_is_the_controller(helm: Helm) -> None:
    rendered = helm.render(KNATIVE)
    owner = _platform(rendered)["owner"]
    assert rendered.one(owner["kind"], owner["name"])["apiVersion"] == owner["apiVersion"]


def test_accelerators_and_spot_nodes(helm: Helm) -> None:
    (example,) = (path for path in EXAMPLES if path.stem == "gke")
    rollout = _platform(helm.render(DIGESTS, [example]))["functions"]["rollout"]
    reserved, spot = (pool["template"]["spec"] for pool in rollout["pools"])
    limits = reserved["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"  # a string, as the Python client wants it
    assert "functions-gpu" in reserved["containers"][0]["image"]
    assert "cloud.google.com/gke-spot" not in reserved["nodeSelector"]
    assert spot["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": "nvidia-l4",
        "cloud.google.com/gke-spot": "true",
    }
    assert len(spot["tolerations"]) == len(reserved["tolerations"]) + 1


def _shared(helm: Helm, **given: str) -> dict[str, str]:
    """Of rollout: the size of its /dev/shm, its memory requested, and the limit of it."""
    values = KNATIVE | {f"functions.rollout.{name}": value for name, value in given.items()}
    (pool,) = _platform(helm.render(values))["functions"]["rollout"]["pools"]
    spec = pool["template"]["spec"]
    (container,) = spec["containers"]
    told = {which: amounts["memory"] for which, amounts in container["resources"].items()}
    sizes = [v["emptyDir"]["sizeLimit"] for v in spec["volumes"] if v["name"] == "shm"]
    mounts = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "shm"]
    assert mounts == ["/dev/shm"] * len(sizes)
    return told | {"size": sizes[0] if sizes else ""}


def test_keys_and_values_of_prefixes_have_shared_memory(helm: Helm) -> None:
    """A quarter of it is vLLM's to take, which the limit and the request count."""
    gpu = {"accelerator": "l4", "count": "1"}
    plain = _shared(helm)
    assert plain == {"requests": "2Gi", "limits": "4Gi", "size": ""}
    assert _shared(helm, **gpu) == {"requests": "6144Mi", "limits": "20480Mi", "size": "16Gi"}
    assert _shared(helm, **gpu, sharedMemory="none") == plain
    told = {"requests": "2304Mi", "limits": "5120Mi", "size": "1Gi"}
    assert _shared(helm, sharedMemory="1Gi") == told
    engine = ROOT / "functions" / "rollout" / "vllm_engine" / "offload.py"  # it needs vLLM
    assert "\nGPU_HOST_BYTES = 4 << 30\n" in engine.read_text(encoding="utf-8")


def test_a_change_of_functions_restarts_the_controller(helm: Helm) -> None:
    def checksum(values: dict[str, str]) -> str:
        deployment = helm.render(KNATIVE | values).one("Deployment", "demo-rlhfless-controller")
        found: str = deployment["spec"]["template"]["metadata"]["annotations"]["checksum/platform"]
        return found

    assert checksum({}) == checksum({})
    assert checksum({}) != checksum({"functions.reward.maxInstances": "9"})


def test_upgrades_lose_no_replica_first(helm: Helm) -> None:
    """A new replica is ready before one drains; but a volume of one writer has to change hands."""
    name = "demo-rlhfless-controller"
    rolling = helm.render().one("Deployment", name)["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxUnavailable": 0, "maxSurge": 1}
    alone = helm.render({"store.pvc.accessMode": "ReadWriteOnce"}).one("Deployment", name)
    assert alone["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


def test_functions_find_inputs_where_the_controller_has_put_them(helm: Helm) -> None:
    """A call names a model by its path, which is the same in every pod; functions only read it."""
    rendered = helm.render(KNATIVE)
    claim = rendered.one("PersistentVolumeClaim", "demo-rlhfless-inputs")["metadata"]["name"]
    controller = rendered.one("Deployment", "demo-rlhfless-controller")["spec"]["template"]["spec"]
    pods = [
        pool["template"]["spec"]
        for function in _platform(rendered)["functions"].values()
        for pool in function["pools"]
    ]
    for pod in (controller, *pods):
        (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "inputs")
        assert volume["persistentVolumeClaim"]["claimName"] == claim
        (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "inputs")
        assert mount["mountPath"] == "/data/inputs"
        is_function = pod is not controller
        assert mount.get("readOnly", False) is is_function
        assert volume["persistentVolumeClaim"].get("readOnly", False) is is_function
    assert "--data=/data" in controller["containers"][0]["args"]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {
            "functionDefaults.priorityClassName": "high",
            "functionDefaults.runtimeClassName": "nvidia",
        },
        {"functionDefaults.affinity.nodeAffinity": "{}"},
        {"functionDefaults.nodeSelector.kind": "gpu", "functions.reward.tolerations[0].key": "gpu"},
    ],
    ids=["defaults", "classes", "affinity", "nodes"],
)
def test_the_docs_name_each_feature_of_knative_that_is_needed(
    helm: Helm, values: dict[str, str], tmp_path: Path
) -> None:
    docs = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    settings = _settings(helm.render(KNATIVE | values), tmp_path)
    needed = {flag for f in settings.functions.values() for pool in f.pools for flag in flags(pool)}
    assert not {flag for flag in needed if flag not in docs and "emptydir" not in flag}


def test_ray_is_told_what_functions_take(helm: Helm, tmp_path: Path) -> None:
    example = next(path for path in EXAMPLES if path.stem == "on-prem-kuberay")
    rendered = helm.render(DIGESTS, [example])
    path = tmp_path / "platform.yaml"
    path.write_text(yaml.safe_dump(_platform(rendered)), encoding="utf-8")
    settings = ray_settings.load_settings(str(path))
    assert ray_settings.serve_url(settings.ray) == "http://raycluster-head-svc.ray.svc:8000"
    assert set(settings.functions) == set(FUNCTION_NAMES)
    rollout = ray_settings.resources_of(settings.functions["rollout"])
    assert (rollout.num_cpus, rollout.num_gpus) == (4, 1)
    assert ray_settings.resources_of(settings.functions["reward"]).num_gpus == 0


def test_on_ray_the_chart_asks_for_nothing_of_the_cluster(helm: Helm) -> None:
    rendered = helm.render({"platform": "ray", "ray.address": "http://head.ray.svc:8265"})
    assert not [m for m in rendered.manifests if m["kind"] in ("Role", "RoleBinding")]
