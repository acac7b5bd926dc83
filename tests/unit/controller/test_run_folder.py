"""The run's folder where the disk or its owner refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.run_folder import RunFolder
from rlhfless.errors import UserError
from rlhfless.spec import JobSpec


@pytest.fixture
def spec() -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "job",
            "model": {"path": "/m"},
            "dataset": {"path": "/d.jsonl"},
            "rewards": [{"python": "/r.py:f"}],
            "training": {"steps": 1},
        }
    )


def test_a_file_is_no_folder(tmp_path: Path, spec: JobSpec) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(UserError, match=f"cannot write to {out}: it is a file, not a folder"):
        RunFolder(str(out)).create(spec)
    assert out.read_text() == "mine"


def test_a_lock_that_cannot_be_taken(tmp_path: Path, spec: JobSpec) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(UserError, match=f"cannot write to {tmp_path}: Is a directory"):
        RunFolder(str(tmp_path)).create(spec)
    (tmp_path / "job.yaml").write_text("{}")
    with pytest.raises(UserError, match=f"cannot write to {tmp_path}: Is a directory"):
        RunFolder(str(tmp_path)).resume(spec)


def test_files_that_cannot_be_written(tmp_path: Path, spec: JobSpec) -> None:
    folder = RunFolder(str(tmp_path))
    folder.create(spec)
    (tmp_path / "metrics.jsonl").mkdir()
    (tmp_path / "samples").write_text("not a folder")
    with pytest.raises(UserError, match=f"cannot write {tmp_path}/metrics.jsonl: Is a directory"):
        folder.rewrite_records([])
    with pytest.raises(UserError, match=f"cannot write {tmp_path}/samples/x: "):
        folder.write("samples/x", "text")
    folder.close()


def test_a_folder_whose_id_is_gone(tmp_path: Path, spec: JobSpec) -> None:
    folder = RunFolder(str(tmp_path))
    folder.create(spec)
    (tmp_path / "id").unlink()
    with pytest.raises(UserError, match=f"cannot read {tmp_path}/id: No such file"):
        _ = folder.run_id
    folder.close()
