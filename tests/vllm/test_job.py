"""Whole jobs whose rollout runs on vLLM."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.runs import ROOT, Result, Workplace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ENDS_WITHIN_S = 400.0


def test_the_quick_start_learns(tmp_path: Path, tiny_model_dir: Path, start_vllm: object) -> None:
    del start_vllm  # vLLM is there
    with Workplace(tmp_path / "place", tiny_model_dir) as place:
        job = ROOT / "examples" / "quickstart.yaml"
        settings = ["rollout.engine=vllm", "rollout.max_instances=1", "training.steps=6"]
        words = [word for setting in settings for word in ("--set", setting)]
        ended = place.run(
            "run", str(job), *words, "--out", str(tmp_path / "run"), within_s=ENDS_WITHIN_S
        )
        assert ended.code == 0, ended.explained()
        summary = Result(tmp_path / "run").summary
        assert summary["eval_after"] > summary["eval_before"] + 0.3
        mismatch = [
            row.get("mismatch/max_abs_logprob_diff", 0.0)
            for row in Result(tmp_path / "run").metrics
        ]
        assert 0 < max(mismatch) < 1e-3
        place.assert_nothing_left()


def test_a_killed_rollout_loses_only_what_it_had_not_streamed(
    tmp_path: Path, tiny_model_dir: Path, start_vllm: object
) -> None:
    del start_vllm
    with Workplace(tmp_path / "place", tiny_model_dir) as place:
        place.change_job(
            rollout={"engine": "vllm", "max_tokens": 150, "max_instances": 1}, evaluation=None
        )
        place.gate("kill", "step-000001/rollout/actor-*", after="Tokens")
        running = place.start_job(gated=True)
        os.kill(place.reached("kill", running), signal.SIGKILL)
        place.open("kill")
        ended = running.ended(ENDS_WITHIN_S)
        assert ended.code == 0, ended.explained()
        first, second = place.calls("step-000001/rollout/actor-")
        assert first["pid"] != second["pid"]
        assert not any(first["held"].values())
        assert any(second["held"].values())  # what had come was not generated again
        result = place.result()
        assert [row["rollout/lost_calls"] for row in result.metrics] == [0, 1, 0]
        assert result.summary["status"] == "succeeded"
        place.assert_nothing_left()
