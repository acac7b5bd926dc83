"""Whole jobs whose training has several workers: the same curve, and the same end after a kill."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rlhfless.objects import ObjectStore
from rlhfless.versions import latest_version
from tests.support.runs import ROOT, Workplace, assert_same, wait_for

pytestmark = pytest.mark.slow
QUICKSTART = str(ROOT / "examples" / "quickstart.yaml")
CURVE = ("reward/mean", "policy/loss", "policy/kl", "policy/grad_norm", "policy/entropy")


def test_the_quick_start_learns_the_same(tmp_path: Path, tiny_model_dir: Path) -> None:
    with Workplace(tmp_path, tiny_model_dir) as place:
        for workers in (1, 2):
            short = ["training.steps=3", "training.threads=1", "evaluation.dataset.limit=32"]
            settings = [
                each for s in (*short, f"training.workers={workers}") for each in ("--set", s)
            ]
            ended = place.run("run", QUICKSTART, *settings, "--out", f"run-{workers}")
            assert ended.code == 0, ended.explained()
            place.assert_nothing_left()
        one, two = (place.result(f"run-{workers}") for workers in (1, 2))
        for mine, theirs in zip(one.metrics, two.metrics, strict=True):
            for name in CURVE:
                assert theirs[name] == pytest.approx(mine[name], rel=0.02, abs=1e-4), name
        used = two.summary["usage"]["training"]
        assert used["held_s"] <= 2 * two.summary["wall_s"]


def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path: Path, tiny_model_dir: Path) -> None:
    with Workplace(tmp_path, tiny_model_dir) as place:
        place.change_job(training={"workers": 2})
        steady = place.start_job("steady").ended()
        assert steady.code == 0, steady.explained()

        running = place.start_job("run")
        store = ObjectStore(str(tmp_path / "run" / "store"))

        def trained() -> bool:
            made = tmp_path / "run" / "id"
            return made.exists() and latest_version(store, made.read_text().strip()) >= 1

        wait_for(trained, "a version")
        running.signal(signal.SIGKILL)
        assert running.ended().code == -signal.SIGKILL
        place.assert_nothing_left()
        ended = place.start_job("run", "--resume").ended()
        assert ended.code == 0, ended.explained()
        place.assert_nothing_left()
        assert_same(place.result("run"), place.result("steady"))
