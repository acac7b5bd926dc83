"""Knative Services as they are applied."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.platforms.base import Deployment
from controller.platforms.knative_manifest import (
    HOLDER,
    JOB,
    SHARED,
    as_here,
    job_labels,
    lanes,
    release_labels,
    service_manifest,
    service_name,
    shared_manifest,
)
from controller.platforms.knative_settings import KnativeSettings
from controller.platforms.kube import Object
from rlhfless.engines import EngineOptions
from rlhfless.errors import UserError
from tests.support.knative_platforms import settings

ROLLOUT = Deployment("rollout", max_instances=4)


def manifests(told: KnativeSettings, deployment: Deployment = ROLLOUT, **more: Any) -> list[Object]:
    here = as_here(deployment, told)
    given = {"holder": "me", **more}
    return [
        service_manifest(told, "job-1", here, lane, **given)
        for lane in lanes(here, told.functions[here.function])
    ]


def scaling(manifest: Object) -> dict[str, str]:
    found = manifest["spec"]["template"]["metadata"]["annotations"]
    head = "autoscaling.knative.dev/"
    return {name.removeprefix(head): v for name, v in found.items() if name.startswith(head)}


def arguments(manifest: Object) -> dict[str, str]:
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    pairs = [argument.removeprefix("--").partition("=")[::2] for argument in container["args"]]
    assert len({name for name, _ in pairs}) == len(pairs), "an option is given twice"
    return dict(pairs)


def test_scaling_is_by_demand_and_bounded() -> None:
    (manifest,) = manifests(settings())
    assert scaling(manifest) == {
        "class": "kpa.autoscaling.knative.dev",
        "metric": "concurrency",
        "target-utilization-percentage": "100",
        "target-burst-capacity": "-1",
        "min-scale": "0",
        "max-scale": "4",
        "initial-scale": "0",
        "window": "60s",
        "scale-down-delay": "60s",
    }
    assert manifest["spec"]["template"]["spec"]["containerConcurrency"] == 1


def test_the_clusters_bounds_hold() -> None:
    many = Deployment("rollout", max_instances=100, concurrency=2)
    (manifest,) = manifests(settings(function={"concurrency": 3}), many)
    assert scaling(manifest)["max-scale"] == "8"
    assert manifest["spec"]["template"]["spec"]["containerConcurrency"] == 3
    assert arguments(manifest)["concurrency"] == "3"


@pytest.mark.parametrize(
    ("idle_s", "operator", "delay", "window"),
    [(60.0, "120s", "120s", "60s"), (300.0, "2m", "300s", "60s"), (math.inf, "0s", "3600s", "60s"),
     (1e6, "0s", "3600s", "60s"), (0.5, "0s", "1s", "6s"), (0.0, "1h", "3600s", "60s")],
)  # fmt: skip
def test_the_delay_is_the_longer_of_the_jobs_and_the_operators(
    idle_s: float, operator: str, delay: str, window: str
) -> None:
    told = settings(function={"scaleDownDelay": operator})
    (manifest,) = manifests(told, Deployment("rollout", idle_timeout_s=idle_s))
    found = scaling(manifest)
    assert (found["scale-down-delay"], found["window"]) == (delay, window)


def test_spot_is_a_service_of_its_own_and_goes_first() -> None:
    spot, on_demand = manifests(settings(spot=2))
    assert spot["metadata"]["name"] == on_demand["metadata"]["name"] + "-spot"
    assert scaling(spot)["max-scale"] == "2"
    assert scaling(on_demand)["max-scale"] == "4"  # spot nodes can run out
    assert spot["metadata"]["labels"]["rlhfless.io/pool"] == "spot"


def test_the_cluster_says_what_a_pod_computes_on() -> None:
    told = settings(function={"accelerator": "h100", "count": 2})
    assert arguments(manifests(told)[0])["accelerator"] == "cuda"
    with pytest.raises(UserError, match="no accelerator") as error:
        manifests(settings(), Deployment("rollout", accelerator="cuda"))
    assert error.value.param == "rollout.accelerator"


def test_what_the_job_says_replaces_what_the_template_says() -> None:
    deployment = Deployment("rollout", threads=3, engine=EngineOptions(max_batch=7))
    found = arguments(manifests(settings(), deployment)[0])
    assert found["threads"] == "3"
    assert '"max_batch":7' in found["engine"]
    assert found["function"] == "rollout" and found["port"] == "8000"


def test_the_template_is_not_changed() -> None:
    told = settings()
    before = told.model_dump_json()
    manifests(told)
    assert told.model_dump_json() == before


def test_who_holds_it_makes_no_new_revision() -> None:
    (mine,) = manifests(settings())
    owner = {"kind": "Deployment", "name": "c", "uid": "1", "apiVersion": "apps/v1"}
    (theirs,) = manifests(settings(), holder="another", owner=owner)
    assert mine["spec"] == theirs["spec"]
    assert mine["metadata"]["annotations"] == {HOLDER: "me", JOB: "job-1"}
    assert theirs["metadata"]["ownerReferences"] == [owner]


def test_requests_are_within_the_clusters_time() -> None:
    told = settings(timeoutSeconds=120, responseStartTimeoutSeconds=300)
    spec = manifests(told)[0]["spec"]["template"]["spec"]
    assert (spec["timeoutSeconds"], spec["responseStartTimeoutSeconds"]) == (120, 120)


def test_a_function_that_the_cluster_has_not() -> None:
    told = settings()
    without = told.model_copy(update={"functions": {"reward": told.functions["reward"]}})
    with pytest.raises(UserError, match="no rollout function"):
        as_here(ROLLOUT, without)


def test_workers_are_said_to_a_pod() -> None:
    made = manifests(settings(), Deployment("training", workers=2))
    assert {arguments(manifest)["workers"] for manifest in made} == {"2"}


@given(st.text(min_size=1), st.text(min_size=1))
def test_jobs_do_not_cross(one: str, other: str) -> None:
    """Whatever their ids are, names and labels are valid, and equal only for one job."""
    told = settings()
    names = [service_name(told, job, "reference", "spot") for job in (one, other)]
    labels = [job_labels(told, job)["rlhfless.io/job"] for job in (one, other)]
    assert (names[0] == names[1]) == (labels[0] == labels[1]) == (one == other)
    assert max(map(len, names)) <= 63 - len("-00001-deployment")


def test_releases_do_not_cross() -> None:
    one = settings()
    other = one.model_copy(update={"release": "second"})
    assert service_name(one, "j", "reward", "") != service_name(other, "j", "reward", "")
    assert release_labels(one) != release_labels(other)
    assert release_labels(one).items() <= job_labels(one, "j").items()


def shared(told: KnativeSettings, kind: Hashable = "m", **fields: Any) -> list[Object]:
    here = as_here(Deployment("reward", **fields), told)
    found = lanes(here, told.functions["reward"], shared=True)
    return [shared_manifest(told, kind, here, lane, {"mark": "me"}) for lane in found]


def test_who_wants_a_service_of_one_name_wants_the_same_service() -> None:
    told = settings(spot=2)
    mine, theirs = shared(told, max_instances=2), shared(told, max_instances=5)
    assert mine == theirs  # each job's own bound is held by who calls
    reserved, spot = (one["metadata"] for one in reversed(mine))
    assert spot["name"] == f"{spot['labels'][SHARED]}" and spot["name"].endswith("-reward-spot")
    assert reserved["name"] != spot["name"]
    assert "rlhfless.io/job" not in reserved["labels"]
    assert reserved["annotations"] == {"mark": "me"}
    (template, _) = (one["spec"]["template"] for one in mine)
    assert template["metadata"]["labels"][SHARED] == spot["name"]


@pytest.mark.parametrize("other", [{"kind": "n"}, {"threads": 2}, {"concurrency": 3}])
def test_whatever_its_pods_are_is_in_its_name(other: dict[str, Any]) -> None:
    told = settings()
    (mine,), (theirs,) = shared(told), shared(told, **other)
    assert mine["metadata"]["name"] != theirs["metadata"]["name"]
    assert (
        shared(settings(function={"count": 1}))[0]["metadata"]["name"] != mine["metadata"]["name"]
    )
