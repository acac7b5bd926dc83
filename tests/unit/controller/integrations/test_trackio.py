"""The real library and its own local database."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trackio")

from tests.support.trackers import Told, evaluated, job_spec, restored, step

READ = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
(run,) = SQLiteStorage.get_runs("tests")
logs = SQLiteStorage.get_logs("tests", run)
print(json.dumps([run, [(r["step"], r.get("reward/mean"), r.get("eval/accuracy")) for r in logs]]))
"""


def test_a_job_is_one_run_over_all_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "database"))
    told = Told(job_spec({"type": "trackio", "project": "tests"}), tmp_path / "run")
    told.run(evaluated(0), step(1), step(2), ends="paused")
    told.run(restored(1), restored(2), restored(3), evaluated(0), evaluated(3), step(4))
    assert told.warnings == []
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True)
    run, logs = json.loads(done.stdout.splitlines()[-1])
    assert run == "quick-start-0123abcd"
    assert sorted(tuple(row) for row in logs if row[2] is None) == [
        (1, 0.1, None),
        (2, 0.2, None),
        (3, 0.3, None),
        (4, 0.4, None),
    ]
    assert [row[0] for row in logs if row[2] is not None] == [0, 3]
