"""The stores of a simulated job: a journal and objects that live in this process's memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from controller.collector import FinishedSample
from controller.journal import Scores, StepJournal, StepRecord
from rlhfless.errors import InternalError
from rlhfless.objects import ObjectInfo, ObjectStore


class MemoryJournal:
    """``controller.journal.Journal`` without a server. What one controller kept, the next finds.

    ``step_s``: seconds the controller itself takes a step, where that was measured; they pass at
    the commit.
    """

    def __init__(self, spec: str = "", step_s: float = 0.0) -> None:
        self._notes: dict[str, Any] = {"spec": spec}
        self._steps: dict[int, StepRecord] = {}
        self._open: dict[int, StepJournal] = {}
        self._policy_state: bytes | None = None
        self._step_s = step_s

    async def note(self, **values: Any) -> None:
        self._notes |= values

    async def notes(self) -> dict[str, Any]:
        return dict(self._notes)

    async def records(self) -> list[StepRecord]:
        return [self._steps[step] for step in sorted(self._steps)]

    async def step_journal(self, step: int) -> StepJournal:
        kept = self._open.get(step, StepJournal())
        return StepJournal(dict(kept.samples), dict(kept.scores), dict(kept.reference))

    async def add_samples(self, step: int, samples: Iterable[FinishedSample]) -> None:
        self._opened(step).samples.update((sample.id, sample) for sample in samples)

    async def add_scores(self, step: int, scores: Mapping[str, Scores]) -> None:
        self._opened(step).scores.update(scores)

    async def add_reference(self, step: int, logprobs: Mapping[str, bytes]) -> None:
        self._opened(step).reference.update(logprobs)

    async def commit(self, record: StepRecord, policy_state: bytes, **notes: Any) -> None:
        if self._step_s:
            await asyncio.sleep(self._step_s)
        committed = len(self._steps)
        if committed == record.step + 1:
            return
        if committed != record.step:
            raise InternalError(f"step {record.step} cannot be committed: {committed} steps are")
        self._steps[record.step] = record
        self._policy_state = policy_state
        self._notes |= notes
        self._open.pop(record.step, None)

    async def policy_state(self) -> bytes | None:
        return self._policy_state

    def _opened(self, step: int) -> StepJournal:
        return self._open.setdefault(step, StepJournal())


class MemoryObjects(ObjectStore):
    """Objects in a dictionary; never older or younger than each other."""

    def __init__(self) -> None:
        self.url = "memory:"
        self._objects: dict[str, bytes] = {}

    def path(self, name: str) -> str:
        return name

    def local_path(self, name: str) -> str | None:  # noqa: ARG002  (nothing is a file)
        return None

    def put(self, name: str, data: bytes, *, durable: bool = False) -> None:  # noqa: ARG002
        self._objects[name] = data

    def create(self, name: str, data: bytes) -> bool:
        return self._objects.setdefault(name, data) is data

    def sync(self, name: str) -> None:
        if name not in self._objects:
            raise FileNotFoundError(name)

    def get(self, name: str) -> bytes:
        try:
            return self._objects[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def get_range(self, name: str, start: int, end: int) -> bytes:
        return self.get(name)[start:end]

    def exists(self, name: str) -> bool:
        return name in self._objects

    def list(self, prefix: str, *, unfinished: bool = False) -> list[str]:  # noqa: ARG002
        return sorted(name for name in self._objects if name.startswith(f"{prefix}/"))

    def infos(self, prefix: str) -> tuple[ObjectInfo, ...]:
        return tuple(ObjectInfo(name, len(self._objects[name]), 0.0) for name in self.list(prefix))

    def touch(self, name: str) -> None:
        pass

    def delete(self, name: str) -> None:
        self._objects.pop(name, None)
