"""MLflow: a run in an experiment, found again by its tag ``rlhfless.job``.

A metric with the time stamp and step of one that is there replaces it, so that a repeated call
changes nothing. Parameters are the job spec's fields by dotted path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from controller.integrations.tracker import Entry, Logged, RunConfig, Status

JOB_TAG = "rlhfless.job"
STEP, EVALUATION = "step", "eval/accuracy"
"""A metric that each step, and each evaluation, has."""
_PARAMS_A_CALL = 100
_PARAM_CHARS = 500
_NAME = re.compile(r"[^\w\-. :/]")
_STATUS = {
    "succeeded": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
    "paused": "SCHEDULED",
    "interrupted": "SCHEDULED",
}
# The library's own patience is minutes; ours is elsewhere.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


class Mlflow:
    """See ``Tracker``."""

    def begin(self, config: RunConfig) -> Logged:
        os.environ.update({k: v for k, v in _PATIENCE.items() if k not in os.environ})
        if config.api_key is not None:
            os.environ["MLFLOW_TRACKING_TOKEN"] = config.api_key
        client = self._client = MlflowClient(tracking_uri=config.url)
        experiment = self._experiment(config.project)
        job = config.job.replace("'", "")
        found = client.search_runs([experiment], f"tags.`{JOB_TAG}` = '{job}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            client.update_run(self._run, status="RUNNING")
            return Logged(self._last(STEP), self._last(EVALUATION))
        tags = {JOB_TAG: job, **{_NAME.sub("_", tag): "true" for tag in config.tags}}
        run = client.create_run(experiment, run_name=config.name, tags=tags)
        self._run = run.info.run_id
        params = list(_params(config.config))
        for start in range(0, len(params), _PARAMS_A_CALL):
            client.log_batch(self._run, params=params[start : start + _PARAMS_A_CALL])
        return Logged()

    def log(self, entry: Entry) -> None:
        at_ms = int(entry.at * 1000)
        metrics = [
            Metric(_NAME.sub("_", name), value, at_ms, entry.step)
            for name, value in entry.metrics.items()
        ]
        # What tells that the step is there comes last: a batch may be taken in part.
        metrics.sort(key=lambda metric: metric.key in (STEP, EVALUATION))
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, status: Status) -> None:
        self._client.log_batch(self._run, tags=[RunTag("rlhfless.status", status)])
        if status in ("paused", "interrupted"):
            self._client.update_run(self._run, status=_STATUS[status])
        else:
            self._client.set_terminated(self._run, status=_STATUS[status])

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:  # another job has made it this moment, or the error comes again
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)

    def _last(self, name: str) -> int:
        history = self._client.get_metric_history(self._run, name)
        return max((metric.step for metric in history), default=-1)


def _params(value: Any, path: str = "") -> Iterator[Param]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _params(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(child, dict) for child in value):
        yield from _params(dict(enumerate(value)), path)
    else:
        yield Param(_NAME.sub("_", path), str(value)[:_PARAM_CHARS])
