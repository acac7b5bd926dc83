"""What is known of a job while it runs, for the summary of a run that does not end by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from controller.books import Books
from controller.evaluation import Evaluation, remembered
from controller.job import Event
from controller.journal import StepRecord
from controller.ledger import Usage
from rlhfless.messages import FunctionName


@dataclass
class Known:
    """Filled as a run goes on. ``records`` is None until the journal was read, ``usage`` and
    ``wall_s`` (as ``Books`` has them) until the run has ended. ``evaluations``: by steps done."""

    records: list[StepRecord] | None = None
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    total_steps: int | None = None
    usage: dict[FunctionName, Usage] | None = None
    wall_s: float | None = None

    def found(self, records: Sequence[StepRecord], notes: Mapping[str, Any]) -> None:
        """What earlier runs of the job have left in the journal."""
        self.records = list(records)
        self.evaluations = remembered(notes)

    def observe(self, event: Event) -> None:
        if event.kind == "plan":
            self.total_steps = event.data["total_steps"]
        elif event.kind == "evaluated":
            self.evaluations[event.data["step"]] = event.data["evaluation"]
        elif event.kind == "step" and self.records is not None:
            self.records.append(event.data["record"])

    @contextmanager
    def until_closed(self, books: Books) -> Generator[None]:
        """Read the books when the block ends, however it ends."""
        try:
            yield
        finally:
            now_s = asyncio.get_running_loop().time()
            self.usage, self.wall_s = books.usage(now_s), books.wall_s(now_s)
