"""What an experiment tracker is asked to do; one file here for each that there is.

A tracker runs in a process of its own (``controller.integrations.worker``): its library keeps
settings and keys for the whole process, starts threads and may hang, none of which is a job's
concern. Its methods block, and raise whatever the library raises.
"""

from __future__ import annotations

import os
from typing import Any, Literal, Protocol

import msgspec

Status = Literal["succeeded", "failed", "cancelled", "paused", "interrupted"]


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which run to open. ``job`` is unique and stays the same when the job is resumed, anywhere.
    ``folder`` is the tracker's own; ``config`` the job spec without its secrets."""

    job: str
    name: str
    project: str
    folder: str
    url: str | None = None
    api_key: str | None = None
    tags: list[str] = []
    config: dict[str, Any] = {}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of a step (counted from 1), or of the evaluation after so many. ``at``: Unix
    seconds; a repeated entry has the same."""

    step: int
    evaluation: bool
    at: float
    metrics: dict[str, float]


class Logged(msgspec.Struct, frozen=True):
    """The last step, and the last evaluation, that a run has; -1: none."""

    step: int = -1
    evaluation: int = -1

    def has(self, entry: Entry) -> bool:
        return entry.step <= (self.evaluation if entry.evaluation else self.step)

    def after(self, entry: Entry) -> Logged:
        if entry.evaluation:
            return Logged(self.step, max(self.evaluation, entry.step))
        return Logged(max(self.step, entry.step), self.evaluation)


class Tracker(Protocol):
    def begin(self, config: RunConfig) -> Logged:
        """Open the job's run, or go on with it; says what it has already."""
        ...

    def log(self, entry: Entry) -> None: ...

    def close(self, status: Status) -> None:
        """Bring what was logged to where it belongs. A run that is paused or interrupted goes on
        later."""
        ...


class Mark:
    """Remembers in a file what was logged, for a tracker that cannot be asked."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = os.path.join(folder, f"{name}.logged.json")
        self.logged = Logged()

    def load(self) -> Logged:
        try:
            with open(self._path, "rb") as file:
                self.logged = msgspec.json.decode(file.read(), type=Logged)
        except FileNotFoundError:
            self.logged = Logged()
        return self.logged

    def add(self, entry: Entry) -> None:
        self.logged = self.logged.after(entry)
        with open(self._path + ".tmp", "wb") as file:
            file.write(msgspec.json.encode(self.logged))
        os.replace(self._path + ".tmp", self._path)
