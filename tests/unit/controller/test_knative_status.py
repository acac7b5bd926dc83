"""What Services and pods tell of themselves."""

from __future__ import annotations

from typing import Any

import pytest

from controller.platforms.knative_status import PodPhase, read_pod, read_service
from controller.platforms.kube import Object
from rlhfless.errors import CapacityError, InternalError, RlhflessError, UserError


def service(generation: int = 1, observed: int = 1, **status: Any) -> Object:
    return {
        "metadata": {"name": "fn-a-rollout", "generation": generation},
        "status": {"observedGeneration": observed, **status},
    }


def conditions(**given: Any) -> list[Object]:
    return [{"type": name, **value} for name, value in given.items()]


ROUTED = conditions(Ready={"status": "True"}, RoutesReady={"status": "True"})


def test_a_ready_service_is_reached_inside_the_cluster() -> None:
    view = read_service(
        service(conditions=ROUTED, url="http://out", address={"url": "http://inside"})
    )
    assert (view.url, view.trouble) == ("http://inside", None)
    assert read_service(service(conditions=ROUTED, url="http://out")).url == "http://out"


def test_a_service_without_a_route_or_of_an_earlier_state_has_no_url() -> None:
    waiting = conditions(Ready={"status": "Unknown"}, RoutesReady={"status": "Unknown"})
    assert read_service(service(conditions=waiting, url="http://a")).url is None
    assert read_service(service(2, 1, conditions=ROUTED, url="http://a")).url is None
    new: Object = {"metadata": {"name": "a", "generation": 1}}
    assert read_service(new).url is None


@pytest.mark.parametrize(
    ("reason", "message", "family", "fatal"),
    [
        ("RevisionFailed", 'Unable to fetch image "x": 404', UserError, True),
        ("ContainerMissing", "no such image", UserError, True),
        ("RevisionFailed", 'exceeded quota: "gpus"', CapacityError, False),
        ("RevisionFailed", "Initial scale was never achieved", CapacityError, False),
    ],
)
def test_why_a_service_is_not_ready(
    reason: str, message: str, family: type[RlhflessError], fatal: bool
) -> None:
    failed = {"status": "False", "reason": reason, "message": message}
    view = read_service(service(conditions=conditions(Ready=failed, ConfigurationsReady=failed)))
    assert view.trouble is not None
    assert (view.trouble.family, view.trouble.fatal) == (family, fatal)
    assert message in view.trouble.error().detail


def pod(node: str = "n", deleted: bool = False, **status: Any) -> Object:
    metadata: Object = {"name": "p", "labels": {"serving.knative.dev/service": "fn-a-rollout"}}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": status}


READY = conditions(Ready={"status": "True"})


@pytest.mark.parametrize(
    ("item", "phase"),
    [
        (pod(node="", phase="Pending"), "waiting"),
        (pod(phase="Pending"), "cold"),
        (pod(phase="Running", conditions=conditions(Ready={"status": "False"})), "cold"),
        (pod(phase="Running", conditions=READY, podIP="10.0.0.1"), "ready"),
        (pod(deleted=True, phase="Running", conditions=READY), "stopping"),
        (pod(phase="Failed", reason="Evicted", message="node is low on memory"), "gone"),
        (pod(deleted=True, phase="Succeeded"), "gone"),
    ],
)
def test_where_a_pod_is_in_its_life(item: Object, phase: PodPhase) -> None:
    assert read_pod(item).phase == phase


def test_no_node_takes_it() -> None:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    told = conditions(PodScheduled={"status": "False", "message": message})
    trouble = read_pod(pod(node="", conditions=told)).trouble
    assert trouble is not None and not trouble.fatal
    assert message in trouble.detail
    assert isinstance(trouble.error(), CapacityError)


@pytest.mark.parametrize(
    ("reason", "family", "fatal"),
    [
        ("ErrImagePull", UserError, False),
        ("ImagePullBackOff", UserError, True),
        ("CreateContainerConfigError", UserError, True),
        ("CrashLoopBackOff", InternalError, True),
    ],
)
def test_why_a_container_does_not_start(
    reason: str, family: type[RlhflessError], fatal: bool
) -> None:
    waiting = {"waiting": {"reason": reason, "message": "because"}}
    container = {"name": "function", "restartCount": 0, "state": waiting}
    trouble = read_pod(pod(phase="Pending", containerStatuses=[container])).trouble
    assert trouble is not None
    assert (trouble.family, trouble.fatal) == (family, fatal)
    assert trouble.hint


def test_a_container_that_needs_more_memory() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    container = {"name": "function", "restartCount": 3, "state": {}, "lastState": ended}
    trouble = read_pod(pod(phase="Running", containerStatuses=[container])).trouble
    assert trouble is not None
    assert trouble.family is CapacityError
    assert "OOMKilled" in trouble.detail


def test_one_that_starts_has_no_trouble() -> None:
    container = {
        "name": "function",
        "restartCount": 0,
        "state": {"waiting": {"reason": "ContainerCreating"}},
    }
    assert read_pod(pod(phase="Pending", containerStatuses=[container])).trouble is None
