"""Every example is a valid job whose files exist."""

from __future__ import annotations

from pathlib import Path

import pytest

import examples.quickstart.make
from controller.dataset import load_rows
from rlhfless.spec_file import load_spec

JOB_FILES = sorted(Path(examples.quickstart.make.__file__).parents[1].glob("*.yaml"))


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: path.stem)
def test_an_example_names_data_and_rewards_that_exist(path: Path) -> None:
    spec = load_spec(str(path))
    assert spec.evaluation is not None
    for dataset in (spec.dataset, spec.evaluation.dataset):
        assert "answer" in load_rows(dataset, "dataset")[0].columns
    for reward in spec.rewards:
        assert reward.python is not None
        file, function = reward.python.rsplit(":", 1)
        assert f"def {function}(" in Path(file).read_text()
