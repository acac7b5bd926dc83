"""Weights & Biases. The run's id is the job's, so a resumed job goes on with its run.

W&B counts rows, and drops a row it has: the evaluation after step k is row 2k + 1, step k itself
row 2k. Charts use the metric ``step`` as their axis.
"""

from __future__ import annotations

import os
import re

import wandb

from controller.integrations.tracker import Entry, Logged, Mark, RunConfig, Status

INIT_S = 60
"""Longest wait for the server when a run is opened."""


class Wandb:
    """See ``Tracker``."""

    def begin(self, config: RunConfig) -> Logged:
        os.makedirs(config.folder, exist_ok=True)
        entity, _, project = config.project.rpartition("/")
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            init_timeout=INIT_S,
            silent=True,
            x_disable_stats=True,
        )
        if config.api_key is not None:
            settings.api_key = config.api_key
        if config.url is not None:
            settings.base_url = config.url
        self._run = wandb.init(
            entity=entity or None,
            project=project,
            name=config.name,
            id=re.sub(r"[^A-Za-z0-9_-]", "-", config.job),
            resume="allow",
            dir=os.path.dirname(config.folder),  # it adds a folder of this name itself
            tags=config.tags,
            config=config.config,
            allow_val_change=True,  # a resumed job may have other budgets
            settings=settings,
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        # Without a server to ask, as when it is offline, we have to know ourselves.
        self._mark = Mark(config.folder, "wandb")
        mark = self._mark.load()
        last_row = self._run.starting_step - 1
        return Logged(
            max(mark.step, last_row // 2 if last_row >= 0 else -1),
            max(mark.evaluation, (last_row - 1) // 2 if last_row >= 1 else -1),
        )

    def log(self, entry: Entry) -> None:
        row = 2 * entry.step + entry.evaluation
        self._run.log({**entry.metrics, "step": entry.step}, step=row, commit=True)
        self._mark.add(entry)

    def close(self, status: Status) -> None:
        self._run.finish(exit_code=1 if status in ("failed", "cancelled") else 0)
