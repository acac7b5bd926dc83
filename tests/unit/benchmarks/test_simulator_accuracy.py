from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scheduling import STATIC
from benchmarks.simulator_accuracy import (
    BEGIN,
    END,
    Line,
    median_errors,
    quickstart,
    this_machine,
    write_docs,
)

LINES = [
    Line("a", 2, "static", 1.0, 1.1, 10.0, 9.0),
    Line("b", 4, "static", 2.0, 1.9, 10.0, 10.5),
    Line("c", 8, "static", 2.0, 2.0, 10.0, 12.0),
]


def test_errors_are_of_what_was_measured() -> None:
    assert LINES[0].step_error == pytest.approx(0.1)
    assert LINES[0].held_error == pytest.approx(-0.1)
    assert median_errors(LINES) == (pytest.approx(0.05), pytest.approx(0.1))


def test_rounds_come_to_medians() -> None:
    job = quickstart(STATIC, seed=1, steps=8, warmup=3)
    measured = [(1.0, 5.0), (9.0, 50.0), (2.0, 6.0)]
    line = Line.of(job, measured, [(2.0, 4.0)] * 3)
    assert (line.step_s, line.held_s) == (2.0, 6.0)
    assert (line.predicted_step_s, line.predicted_held_s) == (2.0, 4.0)
    assert line.actors == job.spec.rollout.max_instances


def test_results_go_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_docs(str(page), LINES)
    write_docs(str(page), LINES)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("| a | 2 | static | 1.000 | 1.100 | +10.0% |") == 1
    assert "Median error: 5.0% of step time, 10.0% of function-seconds held." in text


def test_the_page_has_the_marks() -> None:
    page = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()
    assert page.count(BEGIN) == page.count(END) == 1


def test_local_processes_share_cores_freely() -> None:
    assert this_machine().sharing == "unlimited"
