"""``summary.json`` of runs that do not end by themselves: what is known, and nothing made up."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from controller.books import Books
from controller.evaluation import EvaluatedSample, Evaluation
from controller.job import Event
from controller.journal import StepRecord
from controller.known import Known
from controller.ledger import Ledger
from controller.run_folder import RunFolder
from controller.summary import write_failure

PROBLEM = {"detail": "the reward broke", "category": "user"}
SPENT = {
    "usage": {"rollout": {"cold_s": 1.0, "busy_s": 2.0, "idle_s": 3.0, "usd": 0.5}},
    "wall_s": 7.0,
}


def evaluation(accuracy: float) -> dict[str, Any]:
    sample = {"prompt": "p", "completion": "c", "reward": accuracy}
    return {
        "version": 0,
        "accuracy": accuracy,
        "reward_mean": 0.0,
        "length_mean": 1.0,
        "samples": [sample],
    }


def record(step: int) -> StepRecord:
    return StepRecord(step=step, version=step + 1, metrics={"step": step + 1.0}, position={})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path))


def written(folder: RunFolder) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(folder.file("summary.json")).read_text())
    return content


def observed() -> Known:
    """Of a job that had done a step, was resumed, did another and was evaluated in between."""
    known = Known()
    known.found([record(0)], {"data": "x", "status": "running", "eval_0": evaluation(0.25)})
    known.observe(Event("plan", "", {"total_steps": 3}))
    known.observe(Event("step", "", {"record": record(1), "metrics": {}}))
    found = Evaluation(2, 0.5, 0.0, 1.0, [EvaluatedSample("p", "d", 0.5)])
    known.observe(Event("evaluated", "", {"step": 2, "evaluation": found}))
    return known


def test_the_books_are_read_when_a_run_ends_however_it_ends() -> None:
    known = Known()

    async def main() -> None:
        now_s = asyncio.get_running_loop().time()
        ledger = Ledger()
        ledger.started("i", "training", now_s - 5.0)
        with known.until_closed(Books(ledger, SPENT, now_s - 6.0)):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert known.usage is not None and known.wall_s is not None
    assert known.usage["training"].cold_s == pytest.approx(5.0, abs=1.0)
    assert known.usage["rollout"].held_s == 6.0
    assert known.wall_s == pytest.approx(13.0, abs=1.0)


def test_what_is_known_is_told(folder: RunFolder) -> None:
    known = observed()
    ledger = Ledger()
    known.usage, known.wall_s = Books(ledger, SPENT, 0.0).usage(0.0), 7.0
    write_failure(folder, "failed", PROBLEM, known)
    assert written(folder) == {
        "status": "failed",
        "reason": "the reward broke",
        "steps": 2,
        "eval_before": 0.25,
        "eval_after": None,
        "evaluations": {"0": 0.25, "2": 0.5},
        "samples_before": [{"prompt": "p", "completion": "c", "reward": 0.25}],
        "samples_after": [],
        "wall_s": 7.0,
        "function_seconds": {"rollout": 6.0},
        "usage": {
            "rollout": {"held_s": 6.0, "busy_s": 2.0, "idle_s": 3.0, "cold_s": 1.0, "usd": 0.5}
        },
        "idle_fraction": 0.5,
        "cost_usd": 0.5,
        "final_metrics": {"step": 2.0},
        "weights": None,
        "error": PROBLEM,
    }


def test_the_last_evaluation_is_told_if_only_the_export_failed(folder: RunFolder) -> None:
    known = observed()
    found = Evaluation(3, 0.75, 0.0, 1.0, [])
    known.observe(Event("evaluated", "", {"step": 3, "evaluation": found}))
    write_failure(folder, "interrupted", {}, known)
    assert (written(folder)["eval_after"], written(folder)["reason"]) == (0.75, "interrupted")


def test_nothing_known_is_null(folder: RunFolder) -> None:
    write_failure(folder, "failed", PROBLEM, Known())
    summary = written(folder)
    assert (summary["steps"], summary["evaluations"]) == (0, {})
    for name in ("wall_s", "function_seconds", "usage", "cost_usd", "eval_before", "weights"):
        assert summary[name] is None


def test_a_run_that_learns_nothing_keeps_what_the_one_before_knew(folder: RunFolder) -> None:
    known = observed()
    known.usage, known.wall_s = {}, 7.0
    write_failure(folder, "interrupted", {}, known)
    write_failure(folder, "failed", PROBLEM, Known())
    summary = written(folder)
    assert (summary["status"], summary["reason"]) == ("failed", "the reward broke")
    assert (summary["steps"], summary["wall_s"], summary["eval_before"]) == (2, 7.0, 0.25)


def test_a_success_and_a_damaged_summary(folder: RunFolder) -> None:
    folder.write("summary.json", "{")
    write_failure(folder, "failed", PROBLEM, Known())
    assert written(folder)["status"] == "failed"
    folder.write("summary.json", '{"status": "succeeded"}')
    write_failure(folder, "failed", PROBLEM, Known())
    assert written(folder) == {"status": "succeeded"}
