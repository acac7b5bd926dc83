"""What a job remembers, whatever keeps it: the journal's contents and what it can do.

``controller.job_store`` keeps it in Redis; a simulation keeps it in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from controller.collector import FinishedSample
from controller.ledger import Usage
from rlhfless.messages import FunctionName


class Scores(msgspec.Struct, frozen=True):
    """A sample's reward: weighted total, and by function (None: does not apply)."""

    total: float
    parts: list[float | None]


@dataclass
class StepJournal:
    """What an open step has already done, by sample id."""

    samples: dict[str, FinishedSample] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)
    reference: dict[str, bytes] = field(default_factory=dict)


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A committed step. ``position`` is where the data order goes on; ``usage`` what was held from
    the end of the step before to the end of this one."""

    step: int
    version: int
    metrics: dict[str, float]
    position: dict[str, int]
    plan: dict[str, Any] = {}
    usage: dict[FunctionName, Usage] = {}


class Journal(Protocol):
    """One job's state. A step's journal grows while the step runs and is folded into one record
    when the step is committed; ``controller.job_store`` says more. Raises ``TransientError`` when
    it cannot be reached, ``CapacityError`` when it cannot persist."""

    async def note(self, **values: Any) -> None:
        """Keep JSON values with the job (status, evaluation results, usage)."""
        ...

    async def notes(self) -> dict[str, Any]:
        """All that was noted, and ``spec``, the job as it was created."""
        ...

    async def records(self) -> list[StepRecord]:
        """All committed steps, in order."""
        ...

    async def step_journal(self, step: int) -> StepJournal:
        """What an interrupted attempt at this step left."""
        ...

    async def add_samples(self, step: int, samples: Iterable[FinishedSample]) -> None: ...

    async def add_scores(self, step: int, scores: Mapping[str, Scores]) -> None: ...

    async def add_reference(self, step: int, logprobs: Mapping[str, bytes]) -> None: ...

    async def commit(self, record: StepRecord, policy_state: bytes, **notes: Any) -> None:
        """Fold the step's journal into its record, and keep ``notes`` as ``note`` does. Repeating
        a commit is harmless; a commit out of order raises ``InternalError``."""
        ...

    async def policy_state(self) -> bytes | None:
        """What the policies have learned, as of the last commit."""
        ...
