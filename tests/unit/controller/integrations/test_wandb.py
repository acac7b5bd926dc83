"""The real library, offline: what it would upload is read back from its files."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb")

from tests.support.trackers import Told, evaluated, job_spec, restored, step

ID = "quick-start-0123abcd"


BLOCK, FILE_HEAD, HEAD = 32768, 7, struct.Struct("<IHB")


def chunks(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The pieces of records (LevelDB's log format): kind (1 whole, 2 first, 3 middle, 4 last)."""
    at = FILE_HEAD
    while at + HEAD.size <= len(data):
        if BLOCK - at % BLOCK < HEAD.size:  # a block's end is left empty
            at += BLOCK - at % BLOCK
            continue
        _, num_bytes, kind = HEAD.unpack_from(data, at)
        if kind == 0:
            return
        at += HEAD.size
        yield kind, data[at : at + num_bytes]
        at += num_bytes


def records(folder: Path) -> list[Any]:
    """All records of all offline runs, oldest run first."""
    from wandb.proto import wandb_internal_pb2 as pb

    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        whole = b""
        for kind, piece in chunks(path.read_bytes()):
            whole = piece if kind in (1, 2) else whole + piece
            if kind in (1, 4):
                found.append(pb.Record.FromString(whole))
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    histories = [r.history for r in records(folder) if r.WhichOneof("record_type") == "history"]
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item}
        for row in histories
    ]


def test_a_job_is_one_run_over_all_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    spec = job_spec({"type": "wandb", "project": "team/tests", "tags": ["nightly"]})
    told = Told(spec, tmp_path)
    told.run(evaluated(0), step(1), step(2), evaluated(2), ends="paused")
    told.run(restored(1), restored(2), restored(3), evaluated(0), evaluated(3), step(4))
    assert told.warnings == []

    runs = [r.run for r in records(tmp_path) if r.WhichOneof("record_type") == "run"]
    assert {(r.run_id, r.entity, r.project, r.display_name) for r in runs} == {
        (ID, "team", "tests", "quick-start")
    }
    assert list(runs[0].tags) == ["nightly"]
    found = rows(tmp_path)
    steps = [row["step"] for row in found if "reward/mean" in row]
    evaluations = [row["step"] for row in found if "eval/accuracy" in row]
    assert (steps, evaluations) == ([1, 2, 3, 4], [0, 2, 3])
    numbers = [row["_step"] for row in found]
    assert numbers == sorted(set(numbers))
