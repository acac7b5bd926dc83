"""The books of pods, from what the API server tells."""

from __future__ import annotations

from controller.ledger import Ledger
from controller.platforms.knative_pods import Pods
from controller.platforms.knative_status import PodPhase, PodView, Trouble
from rlhfless.messages import FunctionName

FUNCTIONS: dict[str, FunctionName] = {"fn-a": "rollout"}


class Told:
    """Pods at a time that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ledger = Ledger()
        self.pods = Pods(dict(FUNCTIONS), self.ledger, lambda: self.now_s)

    def at(self, now_s: float, **phases: PodPhase) -> None:
        self.now_s = now_s
        self.pods.update(PodView(name, "fn-a", "10.0.0.1", p) for name, p in phases.items())

    @property
    def states(self) -> dict[str, str]:
        return {instance.id: instance.state for instance in self.pods.instances()}


def test_a_life_is_booked() -> None:
    told = Told()
    told.at(0, a="waiting")
    assert told.states == {}
    told.at(10, a="cold")
    told.at(15, a="ready")
    told.now_s = 16
    assert told.pods.began("a")
    assert told.states == {"a": "busy"}
    told.now_s = 20
    told.pods.ended("a")
    told.at(23, a="stopping")
    assert told.states == {"a": "stopping"}
    told.at(24)
    assert told.states == {}
    usage = told.ledger.usage(100.0)["rollout"]
    assert (usage.cold_s, usage.busy_s, usage.idle_s) == (5, 4, 5)


def test_a_pod_that_ended_is_held_no_more_though_it_is_still_told_of() -> None:
    told = Told()
    told.at(0, a="ready")
    told.at(5, a="gone")
    assert told.states == {}
    assert told.ledger.usage(100.0)["rollout"].held_s == 5


def test_others_pods_are_none_of_ours() -> None:
    told = Told()
    told.pods.update([PodView("b", "fn-b", "10.0.0.2", "ready")])
    assert told.states == {}
    assert not told.pods.began("b")
    assert told.pods.address("b") == ""
    told.pods.ended("b")


def test_what_waits_costs_nothing_and_says_why() -> None:
    told = Told()
    trouble = Trouble("no node")
    told.pods.update([PodView("a", "fn-a", "", "waiting", trouble)])
    assert told.pods.troubles("fn-a") == [trouble]
    assert told.pods.num_left == 1
    assert told.ledger.usage(10.0) == {}


def test_closing_ends_what_is_held() -> None:
    told = Told()
    told.at(0, a="ready", b="cold")
    assert [pod.view.name for pod in told.pods.ready("fn-a")] == ["a"]
    told.now_s = 3
    told.pods.close()
    assert told.pods.num_left == 0
    assert told.ledger.usage(10.0)["rollout"].held_s == 6


def test_what_several_use_is_booked_in_equal_parts() -> None:
    told = Told()
    told.pods.share("fn-a", 2)
    told.at(0, a="ready")
    assert [instance.share for instance in told.pods.instances()] == [0.5]
    told.now_s = 10
    told.pods.share("fn-a", 4)
    assert [instance.share for instance in told.pods.instances()] == [0.25]
    told.now_s = 30
    usage = told.ledger.usage(30.0)["rollout"]
    assert (usage.cold_s, usage.idle_s) == (0, 10 / 2 + 20 / 4)


def test_what_is_forgotten_costs_nothing_more() -> None:
    told = Told()
    told.at(0, a="ready", b="waiting")
    told.now_s = 5
    told.pods.forget("fn-a")
    told.at(10, a="ready")
    assert told.states == {}
    assert told.pods.num_left == 0
    assert told.ledger.usage(100.0)["rollout"].held_s == 5
