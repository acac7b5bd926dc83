from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhfless.errors import UserError
from rlhfless.measurements import Measurements, save_measurements
from rlhfless.spec import JobSpec
from rlhfless.spec_file import dump_spec
from simulator.replay import read_replay
from simulator.workload_trace import keys_of

SPEC = JobSpec.model_validate(
    {
        "name": "job",
        "model": {"path": "/m"},
        "dataset": {"path": "/d.jsonl"},
        "rewards": [{"python": "/r.py:f"}],
        "rollout": {"max_tokens": 64},
        "training": {"steps": 2, "prompts_per_step": 2},
    }
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(dump_spec(SPEC))
    (tmp_path / "samples").mkdir()
    for step in range(2):
        rows = [
            {"prompt": prompt, "num_tokens": 10 * (step + 1) + size + sample}
            for prompt, size in (("a?", 1), ("bcd?", 5))
            for sample in range(4)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "samples" / f"step-{step + 1:06d}.jsonl").write_text(lines)
    return tmp_path


def test_recorded_lengths_come_back(run: Path) -> None:
    replay = read_replay(str(run))
    first = replay.lengths.lengths(keys_of(["bcd?", "a?"]), group=4, step=0, epoch=0)
    assert first.tolist() == [[15, 16, 17, 18], [11, 12, 13, 14]]
    second = replay.lengths.lengths(keys_of(["a?"]), group=2, step=1, epoch=1)
    assert second.tolist() == [[21, 22]]
    other = replay.lengths.lengths(keys_of(["never seen"]), group=64, step=0, epoch=0)
    assert other.min() >= 1
    assert other.max() <= 64
    assert replay.spec == SPEC
    assert replay.steps == 2
    assert replay.measurements is None


def test_what_was_measured_comes_along(run: Path) -> None:
    measured = Measurements(reward=(1e-3, 1e-4), step_s=0.5)
    save_measurements(str(run / "calibration.json"), measured)
    assert read_replay(str(run)).measurements == measured


def test_no_folder_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no folder of a run: it has no job\.yaml"):
        read_replay(str(tmp_path))


def test_a_run_without_a_step(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(dump_spec(SPEC))
    with pytest.raises(UserError, match="no run with recorded samples"):
        read_replay(str(tmp_path))
