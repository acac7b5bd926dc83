"""What an operator says of functions on Ray."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from controller.platforms.base import Deployment
from controller.platforms.ray_settings import (
    RayPlace,
    RayReplicas,
    RayResources,
    RaySettings,
    as_here,
    load_settings,
    resources_of,
    serve_url,
    settings_of_run,
)
from rlhfless.engines import EngineOptions
from rlhfless.errors import UserError
from rlhfless.ray_apps import Resources

MINIMAL = {
    "platform": "ray",
    "release": "prod",
    "ray": {"address": "http://head:8265"},
    "functions": {
        "rollout": {"accelerator": "cuda", "count": 2, "maxInstances": 8, "scaleDownDelay": "300s"},
        "reward": {},
    },
}


def test_a_file_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "platform.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    settings = load_settings(str(path))
    assert settings.functions["rollout"].max_instances == 8
    assert settings.functions["reward"] == RayReplicas()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"platform": "knative"}, "platform"),
        ({"relase": "x"}, "relase"),
        ({"ray": {}}, "ray.address"),
        ({"ray": {"address": "ray://head:10001"}}, "no address of Ray's dashboard"),
        ({"functions": {"rollout": {"count": -1}}}, "functions.rollout.count"),
        ({"functions": {"rollout": {"scaleDownDelay": "soon"}}}, "no duration"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, object], told: str) -> None:
    path = tmp_path / "platform.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | change))
    with pytest.raises(UserError) as raised:
        load_settings(str(path))
    assert told in f"{raised.value.detail} {raised.value.param}"


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UserError, match="cannot read"):
        load_settings("/nowhere/platform.yaml")


@pytest.mark.parametrize(
    ("place", "url"),
    [
        (RayPlace(address="http://head:8265"), "http://head:8000"),
        (RayPlace(address="http://[::1]:8265/"), "http://[::1]:8000"),
        (RayPlace(address="http://head:8265", serve_url="https://serve/x/"), "https://serve/x"),
        (RayPlace(serve_url="http://serve:80"), "http://serve:80"),
    ],
)
def test_where_serve_is(place: RayPlace, url: str) -> None:
    assert serve_url(place) == url


def test_a_deployment_gets_the_clusters_bounds() -> None:
    settings = RaySettings.model_validate(MINIMAL)
    here = as_here(Deployment("rollout", max_instances=100, workers=1), settings)
    assert (here.max_instances, here.accelerator, here.idle_timeout_s) == (8, "cuda", 300.0)
    forever = as_here(Deployment("reward", idle_timeout_s=math.inf), settings)
    assert math.isfinite(forever.idle_timeout_s)


def test_what_the_cluster_has_not_is_told() -> None:
    settings = RaySettings.model_validate(MINIMAL)
    with pytest.raises(UserError, match="no training function"):
        as_here(Deployment("training"), settings)
    with pytest.raises(UserError, match="no accelerator"):
        as_here(Deployment("reward", accelerator="h100"), settings)


def test_resources_in_rays_words() -> None:
    gpu = RayReplicas(accelerator="cuda", count=4, resources=RayResources(cpus=2, memory_gib=1))
    assert resources_of(gpu) == Resources(num_cpus=2, num_gpus=4, memory_bytes=2**30)
    assert resources_of(gpu, workers=4).num_gpus == 1
    tpu = RayResources(accelerator_name="TPU", custom={"spot": 1})
    named = resources_of(RayReplicas(accelerator="tpu", count=4, resources=tpu))
    assert (named.num_gpus, named.custom) == (0, {"TPU": 4, "spot": 1})


def test_a_run_says_what_it_wants_itself() -> None:
    split = EngineOptions(tensor_parallel=2)
    wanted = [
        Deployment("rollout", max_instances=3, accelerator="cuda", engine=split),
        Deployment("reward"),
    ]
    settings = settings_of_run(wanted, address="", serve="http://x:1", release="run-1")
    assert resources_of(settings.functions["rollout"]).num_gpus == 2
    assert resources_of(settings.functions["reward"]) == Resources(num_cpus=1)
    assert as_here(wanted[0], settings).max_instances == 3
