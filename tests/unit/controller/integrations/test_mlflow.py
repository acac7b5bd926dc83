"""Real runs in MLflow's own store, through its own client."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")

from tests.support.trackers import JOB, Told, evaluated, job_spec, restored, step


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs the whole of MLflow
    uri = f"file://{tmp_path}/store"
    spec = job_spec(
        {"type": "mlflow", "url": uri, "project": "tests", "run": "first", "tags": ["nightly"]}
    )
    return Told(spec, tmp_path)


def history(run: Any, client: Any, name: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]


def test_a_job_is_one_run_over_all_its_runs(told: Told) -> None:
    from mlflow.tracking import MlflowClient

    told.run(evaluated(0), step(1), step(2), ends="paused")
    client = MlflowClient(tracking_uri=told.spec.integrations[0].url)
    experiment = client.get_experiment_by_name("tests")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "SCHEDULED"
    assert run.data.params["algorithm.name"] == "grpo"
    assert run.data.params["rewards.0.python"] == "rewards.exact:f"
    assert run.data.tags["rlhfless.job"] == JOB
    assert run.data.tags["nightly"] == "true"

    told.run(restored(1), restored(2), restored(3), evaluated(0), step(4), evaluated(4))
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert history(run, client, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert history(run, client, "reward/h:8000_x") == [(k, 1.0) for k in (1, 2, 3, 4)]
    assert history(run, client, "eval/accuracy") == [(0, 0.0), (4, 0.04)]
    assert told.warnings == []


def test_another_job_is_another_run(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    told.run(step(1))
    monkeypatch.setattr("tests.support.trackers.JOB", "another-job")
    told.run(step(1), ends="failed")
    client = MlflowClient(tracking_uri=told.spec.integrations[0].url)
    experiment = client.get_experiment_by_name("tests")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(run.info.status for run in runs) == ["FAILED", "FINISHED"]
