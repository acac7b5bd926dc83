"""The folder of a run: what a person finds there, and the lock that keeps two runs out of it.

job.yaml        the resolved spec
id              the run's unique name, under which its state is kept in the stores
metrics.jsonl   one JSON object a step
plans.jsonl     how each step's rollout was planned, for ``rlhfless explain``
samples/        step-000001.jsonl ...: every rollout with its rewards
summary.json    how it ended
calibration.json  what its calls took (``rlhfless.measurements``), for the simulator
progress.png    reward and response length over the steps
weights/        the final model, ready for transformers
logs/           one file a function instance, and one a tracker
tensorboard/    event files, where ``integrations`` ask for them (``wandb/``, ``trackio/`` likewise)
store/          object store: weight versions, batches, results
redis/          job store
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from controller.job import StepSamples
from controller.journal import StepRecord
from controller.sample_rows import sample_rows
from rlhfless.errors import ConflictError, UserError, of_os_error
from rlhfless.spec import JobSpec
from rlhfless.spec_file import dump_spec, load_spec
from rlhfless.spec_secrets import masked

_RESUMABLE_CHANGES = (
    "budget",
    "evaluation.every",
    "integrations",
    "metadata",
    "objective",
    "scheduling",
    "training.steps",
    "webhooks",
)
_RESUMABLE_FIELDS = (
    "max_instances",
    "threads",
    "workers",
    "idle_timeout_s",
    "call_timeout_s",
    "price_usd_per_hour",
    "tokens_per_microbatch",
    "max_batch",
    "overlap",
    "checkpoint_every",
    "keep_versions",
)


class RunFolder:
    """Opens (``create`` or ``resume``) and locks a folder; release it with ``close``."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._lock: int | None = None
        self.fresh = False
        """Whether this very run made the folder (``create``) rather than found it."""

    def create(self, spec: JobSpec) -> None:
        """Take a fresh folder. Raises ``ConflictError`` if a run lies there already."""
        if os.path.isfile(self.path):
            raise UserError(
                f"cannot write to {self.path}: it is a file, not a folder",
                hint="name a folder with --out",
            )
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as error:
            raise of_os_error(f"cannot write to {self.path}", error) from error
        self._take_lock()
        if os.path.exists(self.file("job.yaml")):
            self.close()
            raise ConflictError(
                f"{self.path} holds a run already",
                hint="continue it with --resume, or name another folder with --out",
            )
        self.fresh = True
        # Unique, so that runs of one name in different folders can share a Redis.
        self.write("id", f"{os.path.basename(self.path)}-{uuid.uuid4().hex[:8]}")
        self.write("job.yaml", dump_spec(spec))

    def give_up(self) -> None:
        """Nothing was trained and nothing can be resumed: leave the folder free for another run.
        Its logs stay."""
        os.unlink(self.file("job.yaml"))

    @property
    def run_id(self) -> str:
        try:
            with open(self.file("id"), encoding="utf-8") as file:
                return file.read()
        except OSError as error:
            raise of_os_error(f"cannot read {self.file('id')}", error) from error

    def resume(self, spec: JobSpec) -> None:
        """Take a folder back whose run was interrupted. Raises ``UserError`` if there is none, or
        if ``spec`` asks for another job than the one that lies there."""
        if not os.path.exists(self.file("job.yaml")):
            raise UserError(
                f"there is no run to resume in {self.path}",
                hint="run without --resume to start one",
            )
        self._take_lock()
        changed = changed_fields(load_spec(self.file("job.yaml")), spec)
        if changed:
            self.close()
            raise UserError(
                f"{self.path} was started with other settings: {', '.join(changed)}",
                param=changed[0],
                hint="undo the changes, or start a new run without --resume",
            )
        self.write("job.yaml", dump_spec(spec))

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def file(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    def write(self, name: str, text: str) -> None:
        """Replace a file as a whole."""
        path = self.file(name)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".tmp", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(path + ".tmp", path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(path + ".tmp")
            raise of_os_error(f"cannot write {path}", error) from error

    def rewrite_records(self, records: Iterable[StepRecord]) -> None:
        """Bring ``metrics.jsonl`` and ``plans.jsonl`` in line with the journal, the truth."""
        records = list(records)
        self.write("metrics.jsonl", "".join(_line(record.metrics) for record in records))
        self.write("plans.jsonl", "".join(_line(_plan(record)) for record in records))

    def add_record(self, record: StepRecord) -> None:
        """Append a step's metrics and plan."""
        self._append("metrics.jsonl", _line(record.metrics))
        self._append("plans.jsonl", _line(_plan(record)))

    def write_samples(self, done: StepSamples, spec: JobSpec, texts: list[str]) -> None:
        """Write a step's samples (``texts``: decoded responses)."""
        lines = [
            json.dumps(row, ensure_ascii=False, default=str) + "\n"
            for _, row in sample_rows(done, spec, texts)
        ]
        self.write(f"samples/step-{done.step + 1:06d}.jsonl", "".join(lines))

    def _append(self, name: str, text: str) -> None:
        path = self.file(name)
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise of_os_error(f"cannot write {path}", error) from error

    def _take_lock(self) -> None:
        try:
            lock = os.open(self.file(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise of_os_error(f"cannot write to {self.path}", error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConflictError(
                f"another rlhfless run is at work in {self.path}",
                hint="wait for it, or name another folder with --out",
            ) from None
        self._lock = lock


def create_free(root: str, name: str, spec: JobSpec) -> RunFolder:
    """A new run in the first of ``root/name``, ``root/name-2``, ... that is free."""
    for number in itertools.count(1):
        path = os.path.join(root, name if number == 1 else f"{name}-{number}")
        if os.path.exists(os.path.join(path, "job.yaml")):
            continue
        folder = RunFolder(path)
        try:
            folder.create(spec)
        except ConflictError:  # another run took it this moment
            continue
        return folder
    raise AssertionError("unreachable")


def latest_folder(root: str, name: str) -> str:
    """The newest of the folders ``create_free`` has made; the first if there is none."""
    newest, path = 1, os.path.join(root, name)
    for entry in os.listdir(root) if os.path.isdir(root) else ():
        base, _, number = entry.rpartition("-")
        if (
            base == name
            and number.isdigit()
            and int(number) > newest
            and os.path.exists(os.path.join(root, entry, "job.yaml"))
        ):
            newest, path = int(number), os.path.join(root, entry)
    return path


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value) + "\n"


def _plan(record: StepRecord) -> dict[str, Any]:
    return {"step": record.step + 1, **record.plan}


def changed_fields(old: JobSpec, new: JobSpec) -> list[str]:
    """Dotted names of fields that differ and that decide what a job computes."""
    before, after = _flat(masked(old)), _flat(masked(new))
    differing = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return [
        key
        for key in differing
        if not key.startswith(_RESUMABLE_CHANGES) and key.split(".")[-1] not in _RESUMABLE_FIELDS
    ]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = dict(enumerate(value)).items()
    else:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, child in items:
        flat |= _flat(child, f"{prefix}.{key}" if prefix else str(key))
    return flat
