"""kill -9 of functions while a job runs: the job ends as if nothing had happened."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.processes import wait_until_gone
from tests.support.runs import Result, Workplace, assert_same

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # many runs a test

# Where a call is held up while a function is killed: phase -> (calls, point).
PHASES = {
    "evaluation": ("step-000000/rollout/eval-*", "Tokens"),
    "rollout": ("step-000000/rollout/actor-*", "Finished"),
    "reward": ("step-000001/reward/*", "begin"),
    "training": ("step-000001/training/train", "begin"),
    "reference": ("step-000002/reference/*", "begin"),
    "committed": ("step-000002/training/train", "result"),
    "export": ("step-000003/training/export-*", "begin"),
}


def kill(place: Workplace, function: str) -> int:
    """SIGKILL every living instance of a function; returns how many there were."""
    pids = place.instances(function)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until_gone(pids)
    return len(pids)


@pytest.mark.parametrize("function", ["rollout", "reward", "reference", "training"])
def test_a_function_killed_in_every_phase_changes_nothing(
    place: Workplace, undisturbed: Result, function: str
) -> None:
    for phase, (call, point) in PHASES.items():
        place.gate(phase, call, after=point)
    running = place.start_job(gated=True)
    for phase, (call, _) in PHASES.items():
        held_up = place.reached(phase, running)
        if function in call:  # otherwise it is idle, or was killed while it was
            assert held_up in place.instances(function)
        kill(place, function)
        assert running.alive()
        place.open(phase)
    ended = running.ended()
    assert ended.code == 0, ended.explained()
    assert_same(place.result(), undisturbed)
    place.assert_nothing_left()


def test_a_function_that_always_dies_ends_the_run_and_the_run_can_be_resumed(
    place: Workplace, undisturbed: Result
) -> None:
    """One function after the other cannot do its work, then all can again."""
    for number, (function, call) in enumerate(
        {
            "rollout": "step-000000/rollout/actor-*",
            "reward": "step-000001/reward/*",
            "reference": "step-000002/reference/*",
            "training": "step-000002/training/train",
        }.items()
    ):
        place.gate(function, call, action="die", times=99)
        ended = place.start_job("run", *["--resume"] * (number > 0), gated=True).ended()
        assert ended.code == 5, ended.explained()
        assert f"error: the {function} function failed 3 times in a row: " in ended.err
        assert "SIGKILL" in ended.err
        assert "Traceback" not in ended.err
        failed = place.result().summary
        assert failed["status"] == "failed"
        assert "3 times in a row" in failed["error"]["detail"]
        place.assert_nothing_left()
        place.remove_gate(function)
    ended = place.start_job("run", "--resume", gated=True).ended()
    assert ended.code == 0, ended.explained()
    assert_same(place.result(), undisturbed)
