"""Gangs' Jobs as they are made."""

from __future__ import annotations

from typing import Any

import pytest

from controller.platforms.base import Deployment
from controller.platforms.gang_manifest import (
    GANG,
    QUEUE,
    SHAPE,
    address_manifest,
    gang_labels,
    gang_size,
    job_manifest,
    needs_gang,
)
from controller.platforms.knative_manifest import HOLDER, JOB, as_here
from controller.platforms.knative_settings import Gang, KnativeSettings
from controller.platforms.kube import Object
from functions.host import TOKEN_VARIABLE, parse
from rlhfless.errors import UserError
from tests.support.knative_platforms import settings, with_gangs

EIGHT = {"accelerator": "h100", "count": 8}


def training(workers: int) -> Deployment:
    return Deployment("training", accelerator="h100", workers=workers)


def made(told: KnativeSettings, workers: int = 16, holder: str = "me", **more: Any) -> Object:
    here = as_here(training(workers), told, one_pod=False)
    return job_manifest(told, "job-1", here, more.pop("name", "fn-a-1"), holder, **more)


@pytest.mark.parametrize(
    ("workers", "gang", "count", "needs"),
    [
        (1, "kueue", 8, False),
        (8, "kueue", 8, False),
        (16, "kueue", 8, True),
        (2, "kueue", 0, True),
        (2, "none", 0, False),  # processes of one pod, without accelerators
    ],
)
def test_who_needs_a_gang(workers: int, gang: str, count: int, needs: bool) -> None:
    told = settings(function={"count": count})
    told = told.model_copy(update={"training": Gang.model_validate({"gang": gang, **queue(gang)})})
    assert needs_gang(Deployment("training", workers=workers), told) is needs
    assert not needs_gang(Deployment("rollout"), told)


def queue(gang: str) -> dict[str, str]:
    return {"kueueQueue": "gangs"} if gang == "kueue" else {}


def test_without_gangs_more_workers_than_a_pod_has_are_refused() -> None:
    told = settings(function=EIGHT)
    assert not needs_gang(training(16), told)
    with pytest.raises(UserError, match="fewer than 16 workers") as error:
        as_here(training(16), told)
    assert error.value.hint is not None and "knative.training.gang" in error.value.hint


def test_a_gang_needs_a_queue() -> None:
    with pytest.raises(ValueError, match="kueueQueue"):
        Gang(gang="kueue")


@pytest.mark.parametrize("workers", [12, 72])
def test_workers_that_do_not_go_into_whole_nodes(workers: int) -> None:
    told = with_gangs(settings(function=EIGHT))
    with pytest.raises(UserError, match=f"training.workers is {workers}") as error:
        gang_size(training(workers), told)
    assert error.value.param == "training.workers"
    assert error.value.hint is not None and "multiple of 8 up to 64" in error.value.hint


def test_the_job_is_whole_or_not_at_all() -> None:
    spec = made(with_gangs(settings(function=EIGHT)))["spec"]
    assert spec["suspend"] is True
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 2
    assert spec["backoffLimit"] == 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_it_is_in_kueues_queue_and_its_pods_are_not() -> None:
    job = made(with_gangs(settings(function=EIGHT)))
    assert job["metadata"]["labels"][QUEUE] == "gangs"
    assert QUEUE not in job["spec"]["template"]["metadata"]["labels"]


def test_its_pods_are_ranks_of_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    job = made(with_gangs(settings(function=EIGHT)))
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == "fn-a-1"
    arguments = [a.replace("$(JOB_COMPLETION_INDEX)", "1") for a in pod["containers"][0]["args"]]
    assert len({argument.partition("=")[0] for argument in arguments}) == len(arguments)
    monkeypatch.setenv(TOKEN_VARIABLE, "t")
    config = parse(arguments)
    assert (config.workers, config.nodes, config.node_rank) == (16, 2, 1)
    assert config.rendezvous == "fn-a-1-0.fn-a-1:29500"
    assert (config.function, config.accelerator, config.port) == ("training", "cuda", 8000)


def test_its_pods_have_no_probes() -> None:
    told = with_gangs(settings(function=EIGHT))
    container = told.functions["training"].pools[0].template["spec"]["containers"][0]
    container["livenessProbe"] = container["readinessProbe"] = {"httpGet": {"port": 8000}}
    (ours,) = made(told)["spec"]["template"]["spec"]["containers"]
    assert not [name for name in ours if name.endswith("Probe")]
    assert "livenessProbe" in container  # the settings are as they were


def test_pods_that_stay_are_taken_before_spot_ones() -> None:
    labels = made(with_gangs(settings(spot=4, function=EIGHT)))["spec"]["template"]["metadata"]
    assert labels["labels"]["rlhfless.io/pool"] == "on-demand"


def test_its_address_selects_its_pods_and_goes_with_it() -> None:
    job = made(with_gangs(settings(function=EIGHT)), owner={"uid": "deployment"})
    assert job["metadata"]["ownerReferences"] == [{"uid": "deployment"}]
    job["metadata"]["uid"] = "u"
    address = address_manifest(job)
    assert address["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]
    assert address["spec"]["selector"] == {GANG: "fn-a-1"}
    assert job["spec"]["template"]["metadata"]["labels"][GANG] == "fn-a-1"
    assert address["spec"]["publishNotReadyAddresses"] is True
    (owner,) = address["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", "u")


def test_two_controllers_would_make_alike_ones_and_another_job_would_not() -> None:
    told = with_gangs(settings(function=EIGHT))
    mine, theirs = made(told), made(told, holder="them", name="fn-a-2")
    shape = mine["metadata"]["annotations"][SHAPE]
    assert theirs["metadata"]["annotations"] == {HOLDER: "them", JOB: "job-1", SHAPE: shape}
    assert made(told, workers=24)["metadata"]["annotations"][SHAPE] != shape
    other = with_gangs(settings(function=EIGHT), "another")
    assert made(other)["metadata"]["annotations"][SHAPE] != shape
    assert gang_labels(told, "job-1").items() <= mine["metadata"]["labels"].items()
    assert gang_labels(told, "job-2").items() - mine["metadata"]["labels"].items()
