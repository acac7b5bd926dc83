from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhfless.errors import UserError
from rlhfless.measurements import (
    Measurements,
    RolloutMeasured,
    TrainingMeasured,
    load_measurements,
    merged,
    save_measurements,
)
from scaling.cost_model import PRIORS

FULL = Measurements(
    source="rlhfless profile",
    machine="2 cores",
    date="2026-11-21",
    model="some/model",
    rollout=RolloutMeasured(
        decode=PRIORS["decode"],
        prefill=PRIORS["prefill"],
        weights_pull=PRIORS["weights_pull"],
        kv_load=PRIORS["kv_load"],
        kv_publish=PRIORS["kv_publish"],
        max_batch=64,
        kv_capacity_tokens=1000,
        kv_token_bytes=224,
    ),
    training=TrainingMeasured(
        update=PRIORS["training"],
        gradients=(0.0, 1e-4),
        publish_s=0.1,
        weights_bytes=10,
    ),
    reward=(1e-3, 1e-5),
    reference=(1e-3, 1e-5),
    cold_start_s={"rollout": 2.5},
    load_s={"reward": 0.5},
    call_s={"rollout": 2e-3},
    step_s=0.01,
)


def _write(folder: Path, content: Any) -> str:
    path = folder / "measurements.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = str(tmp_path / "m.json")
    save_measurements(path, FULL)
    assert load_measurements(path) == FULL
    assert [each.name for each in tmp_path.iterdir()] == ["m.json"]


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    path = str(tmp_path / "m.json")
    save_measurements(path, Measurements(reward=(0.5, 0.25)))
    assert json.loads(Path(path).read_text()) == {"reward": [0.5, 0.25]}
    assert load_measurements(path).rollout.decode is None


@pytest.mark.parametrize(
    ("content", "words", "param"),
    [
        ({"rolout": {}}, "did you mean rollout?", "rolout"),
        ({"rollout": {"decod": [1]}}, "did you mean decode?", "rollout.decod"),
        ({"rollout": {"decode": [1, 2]}}, "required", "rollout.decode.2"),
        ({"rollout": {"max_batch": 0}}, "greater than 0", "rollout.max_batch"),
        ({"reward": [-1, 0]}, "greater than or equal to 0", "reward.0"),
        ({"cold_start_s": {"judge": 1}}, "cold_start_s.judge", "cold_start_s.judge.[key]"),
        ([], "must hold a mapping", None),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: Any, words: str, param: str | None) -> None:
    with pytest.raises(UserError) as caught:
        load_measurements(_write(tmp_path, content))
    assert words in caught.value.detail
    assert caught.value.param == param


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no measurements file"):
        load_measurements(str(tmp_path / "none.json"))


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        save_measurements(str(tmp_path / "none" / "m.json"), FULL)


def test_what_was_measured_again_counts() -> None:
    newer = Measurements(
        date="2026-12-01",
        rollout=RolloutMeasured(prefill=(1.0, 2.0)),
        call_s={"reward": 5.0},
    )
    both = merged(FULL, newer)
    assert both.date == "2026-12-01"
    assert both.rollout.prefill == (1.0, 2.0)
    assert both.rollout.decode == FULL.rollout.decode
    assert both.call_s == {"rollout": 2e-3, "reward": 5.0}
    assert merged(FULL, Measurements()) == FULL
