"""What ``rlhfless explain`` tells of a step's plan."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlhfless.cli.main import app

PLAN: dict[str, Any] = {
    "actors": 2,
    "strategy": "sorted",
    "reason": "lowest score at time weight 0.5",
    "alternatives": [
        {
            "actors": actors,
            "strategy": strategy,
            "seconds": 4.0 / actors,
            "function_seconds": 4.0,
            "score": 1.0 - 0.1 * actors + 0.01 * (strategy != "sorted"),
        }
        for actors in (1, 2)
        for strategy in ("balanced", "sorted")
    ],
    "prefix": {"reason": "nothing is stored: no two actors need the same prefix"},
    "outcome": {"seconds": 2.5, "predicted_s": 2.0, "moved": 3, "released": 1},
}
UNMEASURED: dict[str, Any] = PLAN | {
    "alternatives": [
        {
            "actors": 2,
            "strategy": "sorted",
            "seconds": None,
            "function_seconds": None,
            "score": None,
        }
    ],
    "reason": "nothing measured yet: as many actors as allowed",
    "outcome": {"seconds": 2.5, "predicted_s": None, "moved": 0, "released": 0},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    plans = [{"step": 1, **UNMEASURED}, {"step": 2, **PLAN}, {"step": 3}]
    lines = [json.dumps(plan) + "\n" for plan in plans]
    (tmp_path / "plans.jsonl").write_text("".join(lines))
    return tmp_path


def explain(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *arguments])
    return result.exit_code, result.output


def test_the_chosen_plan_is_marked_among_its_alternatives(run: Path) -> None:
    code, text = explain(str(run), "--step", "2")
    assert code == 0
    assert "step 2: 2 actors, sorted" in text
    chosen = [line for line in text.splitlines() if line.startswith("->")]
    assert [line.split() for line in chosen] == [["->", "2", "sorted", "2.000", "4.000", "0.8000"]]
    assert text.count("balanced") == 2
    assert "no two actors need the same prefix" in text
    assert "rollout 2.500 s, 2.000 s predicted; 3 samples moved, 1 instances let go" in text


def test_a_step_without_predictions_has_no_table(run: Path) -> None:
    code, text = explain(str(run), "--step", "1")
    assert code == 0
    assert "nothing measured yet" in text
    assert "score" not in text
    assert "predicted" not in text


def test_the_newest_step_is_the_default(run: Path) -> None:
    assert "step 3: every sample was there" in explain(str(run))[1]


def test_a_step_that_is_not_there(run: Path) -> None:
    code, text = explain(str(run), "--step", "9")
    assert code == 2
    assert "no plan of step 9; it has steps 1 to 3" in text


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    code, text = explain(str(tmp_path))
    assert code == 2
    assert "holds no plans" in text
    assert "runs/quickstart" in text


def test_a_torn_file(tmp_path: Path) -> None:
    (tmp_path / "plans.jsonl").write_text('{"step": ')
    code, text = explain(str(tmp_path))
    assert code == 2
    assert "cannot read" in text


def test_the_chosen_plan_need_not_have_the_lowest_score(run: Path) -> None:
    """``objective.max_slowdown`` rules plans out; the one that was run is always shown."""
    cheap = [a | {"actors": 1, "score": 0.01 * n} for n, a in enumerate(PLAN["alternatives"] * 4)]
    chosen = PLAN["alternatives"][3] | {"chosen": True}
    plan = {"step": 4, **PLAN, "alternatives": [*cheap, chosen]}
    with (run / "plans.jsonl").open("a") as file:
        file.write(json.dumps(plan) + "\n")
    _, text = explain(str(run), "--step", "4")
    marked = [line.split() for line in text.splitlines() if line.startswith("->")]
    assert marked == [["->", "2", "sorted", "2.000", "4.000", "0.8000"]]
    assert "12 of 17 alternatives" in text
