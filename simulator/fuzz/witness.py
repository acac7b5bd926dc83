"""What one controller was told, and must therefore not ask for again: nothing is generated or
scored twice that arrived, or that the journal says an earlier controller has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from controller.journal import StepJournal
from rlhfless.messages import (
    AnyFrame,
    Finished,
    Released,
    Request,
    RewardRequest,
    SampleTask,
    Tokens,
)
from simulator.fuzz.trace import Violation


@dataclass
class Witness:
    """Of a controller. ``tokens``: how many of each sample have arrived; ``running``: sample ->
    the call that generates it, as far as the controller can know."""

    tokens: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    scored: set[str] = field(default_factory=set)
    running: dict[str, str] = field(default_factory=dict)

    def restored(self, journal: StepJournal) -> None:
        self.ended |= journal.samples.keys()
        self.scored |= journal.scores.keys()

    def asked(self, request: Request) -> None:
        if isinstance(request, RewardRequest) and not self.scored.isdisjoint(request.sample_ids):
            again = sorted(self.scored.intersection(request.sample_ids))
            raise Violation(f"{', '.join(again)} are scored again")

    def given(self, call: str, tasks: Iterable[SampleTask]) -> None:
        """``call`` is to generate samples."""
        for task in tasks:
            if task.id in self.ended:
                raise Violation(f"{task.id} is complete, and asked for again by {call}")
            if len(task.tokens) < self.tokens.get(task.id, 0):
                have = self.tokens[task.id]
                raise Violation(f"{call} has {task.id} go on at {len(task.tokens)}; {have} arrived")
            other = self.running.get(task.id, call)
            if other != call:
                raise Violation(f"{task.id} is given to {call} while {other} generates it")
            self.running[task.id] = call

    def told(self, call: str, tasks: Sequence[SampleTask], frame: AnyFrame) -> None:
        """The controller has taken a frame of a rollout call."""
        if isinstance(frame, Tokens):
            for index, start, count in zip(frame.samples, frame.starts, frame.counts, strict=True):
                name = tasks[index].id
                self.tokens[name] = max(self.tokens.get(name, 0), start + count)
        elif isinstance(frame, Finished | Released):
            names = [tasks[index].id for index in frame.samples]
            if isinstance(frame, Finished):
                self.ended.update(names)
            self._leave(call, names)

    def over(self, call: str) -> None:
        self._leave(call, [name for name, other in self.running.items() if other == call])

    def _leave(self, call: str, names: Iterable[str]) -> None:
        for name in names:
            if self.running.get(name) == call:
                del self.running[name]
