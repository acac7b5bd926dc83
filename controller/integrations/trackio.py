"""trackio: its local database, or a trackio server. Runs of a project are told apart by their
names, so ours end in a part of the job's id."""

from __future__ import annotations

import os

import trackio

from controller.integrations.tracker import Entry, Logged, Mark, RunConfig, Status

_ID_CHARS = 8


class Trackio:
    """See ``Tracker``. The library keeps what it cannot send and sends it later."""

    def begin(self, config: RunConfig) -> Logged:
        os.makedirs(config.folder, exist_ok=True)
        if config.api_key is not None:
            os.environ["TRACKIO_WRITE_TOKEN"] = config.api_key
        self._mark = Mark(config.folder, "trackio")
        mark = self._mark.load()
        self._run = trackio.init(
            project=config.project,
            name=f"{config.name}-{config.job[-_ID_CHARS:]}",
            server_url=config.url,
            config={**config.config, "job": config.job, "tags": config.tags},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        # In a folder that is new to the run, its last step is all that can be known.
        last = self._run._next_step - 1
        return mark if mark != Logged() else Logged(last, last)

    def log(self, entry: Entry) -> None:
        metrics = {name: value for name, value in entry.metrics.items() if name != "step"}
        self._run.log(metrics, step=entry.step)
        self._mark.add(entry)

    def close(self, status: Status) -> None:  # noqa: ARG002  (it keeps no status)
        self._run.finish()
