"""The controller is killed or interrupted in each phase and resumed: the job ends as if nothing had
happened, and nothing is left behind in between."""

from __future__ import annotations

import os
import re
import shlex
import signal
from dataclasses import dataclass

import pytest

from tests.support.runs import Result, Running, Workplace, assert_same, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # many runs a test


@dataclass(frozen=True)
class Stop:
    """Where the job is held up when its controller is stopped; see ``tests/apps/gated.py``."""

    name: str
    call: str
    after: str = "begin"


PHASES = [
    Stop("evaluation", "step-000000/rollout/eval-*", "Tokens"),
    Stop("rollout", "step-000000/rollout/actor-*", "Finished"),
    Stop("scoring", "step-000001/reference/*"),
    Stop("training", "step-000001/training/train"),
    Stop("export", "step-000003/training/export-*"),
]
COMMITS = [
    Stop("trained", "step-000001/training/train", "result"),
    Stop("answered", "step-000001/controller/commit"),
    Stop("committed", "step-000001/controller/commit", "result"),
    Stop("exported", "step-000003/training/export-*", "result"),
]
"""Where a step, or the export, is done and not yet known to be, or known and not yet told."""


class Samples:
    """Remembers what was finished when a controller was stopped: none of it is generated again."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._seen: list[tuple[int, str]] = []

    def remember(self, step: int) -> set[str]:
        finished = self._place.journaled(step)
        calls = len(self._place.calls())
        self._seen += [(calls, sample) for sample in finished]
        return finished

    def all_in(self, data: bytes) -> bool:
        return all(sample.encode() in data for _, sample in self._seen)

    def assert_generated_once(self) -> None:
        calls = self._place.calls()
        for begun, sample in self._seen:
            again = [call["call"] for call in calls[begun:] if sample in call["held"]]
            assert not again, f"{sample} was finished and generated again by {again}"


def hold_up(place: Workplace, stop: Stop, running: Running, samples: Samples) -> None:
    place.reached(stop.name, running)
    if stop.name == "rollout":  # what the call has sent must have arrived, too
        wait_for(lambda: place.journaled(0), "a finished sample")
    for step in (0, 1):
        samples.remember(step)


def assert_adds_up(result: Result) -> None:
    """Nothing that was spent is missing from the sums, and nothing is in them twice."""
    summary, metrics = result.summary, result.metrics
    held = sum(summary["function_seconds"].values())
    assert held >= sum(m["functions/held_s"] for m in metrics)
    assert summary["wall_s"] >= sum(m["time/step_s"] for m in metrics)
    most = {"rollout": 2, "reward": 1, "reference": 1, "training": 1}
    for function, usage in summary["usage"].items():
        parts = usage["busy_s"] + usage["idle_s"] + usage["cold_s"]
        assert usage["held_s"] == pytest.approx(parts)
        assert 0 < usage["held_s"] <= most[function] * summary["wall_s"]


def assert_known(result: Result, steps: int, evaluated: bool) -> None:
    """The summary of an interrupted run says what is known so far."""
    summary = result.summary
    assert (summary["status"], summary["steps"]) == ("interrupted", steps)
    assert (summary["eval_before"] is not None) == evaluated
    assert summary["wall_s"] > 0
    assert set(summary["function_seconds"]) == {"rollout", "reward", "reference", "training"}
    assert summary["wall_s"] >= sum(m["time/step_s"] for m in result.metrics)


@pytest.mark.parametrize("stops", [PHASES, COMMITS], ids=["phases", "commits"])
def test_a_killed_controller_is_resumed_where_it_was(
    place: Workplace, undisturbed: Result, stops: list[Stop]
) -> None:
    samples = Samples(place)
    for number, stop in enumerate(stops):
        place.gate(stop.name, stop.call, after=stop.after)
        running = place.start_job("run", *["--resume"] * (number > 0), gated=True)
        hold_up(place, stop, running, samples)
        running.signal(signal.SIGKILL)
        assert running.ended().code == -signal.SIGKILL
        place.assert_nothing_left()
    ended = place.start_job("run", "--resume", gated=True).ended()
    assert ended.code == 0, ended.explained()
    assert_same(place.result(), undisturbed)
    samples.assert_generated_once()
    assert_adds_up(place.result())
    place.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_run_says_how_to_go_on_and_does(
    place: Workplace, undisturbed: Result, number: signal.Signals
) -> None:
    place.change_job(training={"steps": 99})  # the command line says otherwise
    command = ["run", "job.yaml", "--out", "run", "--set", "training.steps=3"]
    samples = Samples(place)
    for stop in PHASES:
        place.gate(stop.name, stop.call, after=stop.after)
        running = place.start(*command, gated=True)
        hold_up(place, stop, running, samples)
        running.signal(number)
        ended = running.ended()
        assert ended.code == 130, ended.explained()
        assert "Traceback" not in ended.err
        assert_known(place.result(), len(place.result().metrics), stop.name != "evaluation")
        place.assert_nothing_left()
        found = re.search(r"^interrupted; continue with: rlhfless (.*)$", ended.out, re.MULTILINE)
        assert found is not None, ended.explained()
        command = shlex.split(found[1])
    ended = place.start(*command, gated=True).ended()
    assert ended.code == 0, ended.explained()
    assert_same(place.result(), undisturbed)
    samples.assert_generated_once()
    assert_adds_up(place.result())
    place.assert_nothing_left()


def test_a_killed_job_store_ends_the_run_and_nothing_is_lost(
    place: Workplace, undisturbed: Result
) -> None:
    samples = Samples(place)
    place.gate("rollout", "step-000000/rollout/actor-*", after="Finished")
    running = place.start_job("run", gated=True)
    hold_up(place, Stop("rollout", ""), running, samples)
    # While its disk is slow Redis answers up to two seconds before it writes.
    written = place.folder / "run" / "redis" / "appendonly.aof"
    wait_for(lambda: samples.all_in(written.read_bytes()), "what was journaled is in Redis's file")
    (server,) = (pid for pid, words in place.processes().items() if "redis-server" in words)
    os.kill(server, signal.SIGKILL)
    place.open("rollout")
    ended = running.ended()
    assert ended.code == 4, ended.explained()
    assert "error: the job store cannot be reached" in ended.err
    assert "continue with: rlhfless run job.yaml --out run --resume" in ended.out
    place.assert_nothing_left()
    ended = place.start_job("run", "--resume", gated=True).ended()
    assert ended.code == 0, ended.explained()
    assert_same(place.result(), undisturbed)
    samples.assert_generated_once()
