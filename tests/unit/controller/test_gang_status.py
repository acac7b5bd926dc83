"""Gangs, as the API server and Kueue tell of them."""

from __future__ import annotations

from typing import Any

import pytest

from controller.platforms.gang_status import read_job, read_member, read_workload
from controller.platforms.kube import Object
from rlhfless.errors import CapacityError, InternalError


def job(*conditions: Object, suspended: bool = False, **metadata: Any) -> Object:
    told = {"rlhfless.io/holder": "me", "rlhfless.io/shape": "s"}
    return {
        "metadata": {"name": "fn-a", "annotations": told, **metadata},
        "spec": {"suspend": suspended},
        "status": {"conditions": list(conditions)},
    }


def condition(kind: str, status: str = "True", **said: str) -> Object:
    return {"type": kind, "status": status, **said}


def test_a_job() -> None:
    view = read_job(job(suspended=True))
    assert (view.name, view.holder, view.shape) == ("fn-a", "me", "s")
    assert view.suspended and not view.ended
    assert not read_job(job(condition("Suspended", "False"))).suspended


@pytest.mark.parametrize("kind", ["Failed", "FailureTarget", "Complete"])
def test_a_job_that_is_over(kind: str) -> None:
    view = read_job(job(condition(kind, reason="BackoffLimitExceeded", message="no more")))
    assert "BackoffLimitExceeded: no more" in view.ended
    assert not read_job(job(condition(kind, "False"))).ended
    assert read_job(job(deletionTimestamp="now")).ended


def pod(*, index: str = "1", labels: Object | None = None, **status: Any) -> Object:
    where = {"rlhfless.io/gang": "fn-a", **(labels or {})}
    told = {"batch.kubernetes.io/job-completion-index": index}
    metadata = {"name": "fn-a-1-x", "labels": where, "annotations": told}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": status}


def test_a_member() -> None:
    member = read_member(pod(phase="Running", podIP="10.0.0.1"))
    assert member is not None
    assert (member.gang, member.index, member.view.phase) == ("fn-a", 1, "cold")
    assert member.fault is None
    other = pod()
    del other["metadata"]["labels"]["rlhfless.io/gang"]
    assert read_member(other) is None


def ended(code: int, reason: str = "Error", **status: Any) -> Object:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": "last words"}}
    containers = [{"name": "function", "restartCount": 0, "state": state}]
    return pod(phase="Failed" if code else "Succeeded", containerStatuses=containers, **status)


@pytest.mark.parametrize(
    ("reason", "family"), [("Error", InternalError), ("OOMKilled", CapacityError)]
)
def test_a_member_that_ended_of_itself(reason: str, family: type[Exception]) -> None:
    member = read_member(ended(137, reason))
    assert member is not None and member.fault is not None
    assert member.view.phase == "gone"
    assert isinstance(member.fault.error(), family)
    assert "exit code 137" in member.fault.detail and "last words" in member.fault.detail


def test_a_member_whose_node_went_or_that_was_told_to_go_has_no_fault() -> None:
    went = read_member(ended(137, conditions=[condition("DisruptionTarget")]))
    told = read_member(ended(0))
    assert went is not None and told is not None
    assert went.fault is None and told.fault is None
    assert went.view.phase == told.view.phase == "gone"


def workload(*conditions: Object, **status: Any) -> Object:
    return {"spec": {"queueName": "gpus"}, "status": {"conditions": list(conditions), **status}}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (workload(), "has not come to this gang yet"),
        (
            workload(
                condition("QuotaReserved", "False", reason="Pending", message="9 more needed")
            ),
            "queue gpus does not admit the gang: 9 more needed",
        ),
        (
            workload(
                condition("QuotaReserved", "False", reason="Pending", message="9 more needed"),
                condition("Evicted", message="Preempted to accommodate a higher priority Workload"),
            ),
            "9 more needed (Preempted to accommodate",
        ),
        (
            workload(
                condition("QuotaReserved"),
                admissionChecks=[{"name": "nodes", "state": "Pending", "message": "in 5 min"}],
            ),
            "waits for nodes (Pending) in 5 min",
        ),
    ],
)
def test_why_kueue_does_not_admit(told: Object, said: str) -> None:
    trouble = read_workload(told)
    assert trouble is not None and said in trouble.detail
    assert isinstance(trouble.error(), CapacityError)


def test_what_kueue_admits_has_no_trouble() -> None:
    assert read_workload(workload(condition("QuotaReserved"), condition("Admitted"))) is None


def test_a_queue_that_is_not_there_is_the_operators_to_mend() -> None:
    said = condition(
        "QuotaReserved", "False", reason="Inadmissible", message="LocalQueue gpus doesn't exist"
    )
    trouble = read_workload(workload(said))
    assert trouble is not None and trouble.hint is not None and "kueueQueue" in trouble.hint
