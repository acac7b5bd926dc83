"""Several runs in one place: each keeps to its own folder."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.runs import ROOT, Result, Workplace, assert_same

pytestmark = pytest.mark.slow


def test_two_jobs_at_once_in_one_folder_tree(place: Workplace, undisturbed: Result) -> None:
    both = [place.start("run", "job.yaml") for _ in range(2)]
    for running in both:
        ended = running.ended()
        assert ended.code == 0, ended.explained()
    for name in ("runs/tiny", "runs/tiny-2"):
        assert_same(place.result(name), undisturbed)
    assert sorted(p.name for p in (place.folder / "runs").iterdir()) == ["tiny", "tiny-2"]
    place.assert_nothing_left()


def test_a_second_run_on_a_folder_in_use_is_refused_and_the_first_unharmed(
    place: Workplace, undisturbed: Result
) -> None:
    place.gate("rollout", "step-000000/rollout/actor-*", after="Finished")
    first = place.start_job(gated=True)
    place.reached("rollout", first)
    for arguments in ([], ["--resume"]):
        second = place.start_job("run", *arguments).ended()
        assert second.code == 2, second.explained()
        assert "error: another rlhfless run is at work in" in second.err
        assert "name another folder with --out" in second.err
    place.open("rollout")
    ended = first.ended()
    assert ended.code == 0, ended.explained()
    assert_same(place.result(), undisturbed)

    over = place.start_job().ended()  # what lies there is not overwritten either
    assert over.code == 2, over.explained()
    assert "holds a run already" in over.err
    assert_same(place.result(), undisturbed)
    place.assert_nothing_left()


def test_a_finished_run_can_be_resumed_for_more_steps(place: Workplace) -> None:
    steps = ["--set", "training.steps=1"]
    first = place.start("run", "job.yaml", *steps).ended()
    assert first.code == 0, first.explained()
    before = place.result("runs/tiny")
    weights, evaluated = before.weights, before.summary["samples_after"]
    more = place.start("run", "job.yaml", "--resume", "--set", "training.steps=2").ended()
    assert more.code == 0, more.explained()
    after = place.result("runs/tiny")
    assert [m["step"] for m in after.metrics] == [1, 2]
    assert after.summary["steps"] == 2
    assert after.weights != weights
    assert after.summary["samples_after"] != evaluated
    place.assert_nothing_left()


def test_hammering_ctrl_c_leaves_nothing_behind_either(
    place: Workplace, undisturbed: Result
) -> None:
    place.gate("rollout", "step-000000/rollout/actor-*", after="Finished")
    running = place.start_job(gated=True)
    place.reached("rollout", running)
    while running.alive():
        running.signal(signal.SIGINT)
        time.sleep(0.02)
    # Python itself may be hit while it leaves; a shell calls both 130.
    assert running.so_far().code in (130, -signal.SIGINT), running.so_far().explained()
    place.assert_nothing_left()
    resumed = place.start_job("run", "--resume", gated=True).ended()
    assert resumed.code == 0, resumed.explained()
    assert_same(place.result(), undisturbed)


def test_without_matplotlib_there_is_no_plot_and_that_is_said(place: Workplace) -> None:
    missing = place.folder / "missing" / "matplotlib"
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text("raise ImportError('not installed')\n")
    path = f"{missing.parent}:{ROOT}"
    one_step = ("run", "job.yaml", "--out", "run", "--set", "training.steps=1")
    ended = place.start(*one_step, PYTHONPATH=path).ended()
    assert ended.code == 0, ended.explained()
    assert "no progress.png: matplotlib is not installed; pip install 'rlhfless[plot]'" in ended.out
    assert not (place.folder / "run" / "progress.png").exists()
