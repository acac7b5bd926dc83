"""A gang's state and books, from what is told of its Job and pods."""

from __future__ import annotations

import pytest

from controller.ledger import Ledger
from controller.platforms.gang_life import Gang
from controller.platforms.gang_status import JobView, Member
from controller.platforms.knative_status import PodPhase, PodView


class Told:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.ledger = Ledger(workers={"training": 4})
        self.gang = Gang("fn-a", 2, self.ledger, lambda: self.now_s)

    def at(self, now_s: float, *phases: PodPhase, suspended: bool = False, ended: str = "") -> None:
        self.now_s = now_s
        jobs = {"fn-a": JobView("fn-a", "me", "s", suspended, ended)}
        members = [
            Member(PodView(f"pod-{n}", "fn-a", f"10.0.0.{n}", phase), "fn-a", n)
            for n, phase in enumerate(phases)
        ]
        self.gang.take(jobs, members)

    @property
    def broken(self) -> bool:
        return self.gang.broken.is_set()


def test_a_life_is_booked_with_all_its_accelerators() -> None:
    told = Told()
    told.at(0, suspended=True)
    told.at(5, "waiting", "waiting")
    assert told.gang.instance is None
    told.at(10, "cold", "waiting")
    assert told.gang.address == ""
    told.at(20, "ready", "ready")
    assert told.gang.address == "10.0.0.0"
    told.now_s = 30
    told.gang.ready = told.gang.was_ready = True
    told.gang.book()
    told.now_s, told.gang.calls = 35, 1
    told.gang.book()
    assert told.gang.state == "busy"
    told.now_s, told.gang.calls = 45, 0
    told.gang.book()
    told.at(50, "stopping", "gone")
    told.at(60)
    assert told.gang.instance is None
    usage = told.ledger.usage(100.0)["training"]
    assert usage.cold_s == 4 * (10 / 2 + 10)  # half of it has a node, then all of it
    assert usage.busy_s == 4 * 10
    assert usage.idle_s == 4 * (5 + 5 + 10 / 2)


def test_pods_that_are_told_of_before_their_job_begins_break_nothing() -> None:
    told = Told()
    told.at(0, suspended=True)
    told.at(1, "cold", "cold", suspended=True)
    assert not told.broken
    told.at(2, "cold", "cold")
    told.at(3, "ready", "ready")
    assert not told.broken


def test_it_is_not_gone_because_its_making_has_not_come_through() -> None:
    told = Told()
    told.gang.take({}, [])
    assert not told.broken


@pytest.mark.parametrize("how", ["lost", "gone", "suspended", "over", "deleted"])
def test_what_breaks_it(how: str) -> None:
    told = Told()
    told.at(0, "ready", "ready")
    told.gang.ready = True
    match how:
        case "lost":
            told.at(1, "ready")
        case "gone":
            told.at(1, "ready", "gone")
        case "suspended":
            told.at(1, "ready", "ready", suspended=True)
        case "over":
            told.at(1, "ready", "ready", ended="its Job is over")
        case "deleted":
            told.gang.take({}, [])
    assert told.broken and told.gang.why
    assert not told.gang.ready and told.gang.address == ""


def test_one_that_is_about_to_end_takes_no_more_calls() -> None:
    told = Told()
    told.at(0, "ready", "ready")
    told.at(1, "ready", "stopping")
    assert not told.broken
    assert told.gang.address == "" and told.gang.state == "stopping"
