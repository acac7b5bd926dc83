"""Which waiting samples enter the batch next. Pure bookkeeping; request order is kept.

A sample is admitted only if the longest possible responses of all that run still fit, so nothing
that runs ever has to be thrown out for memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from functions.rollout.roster import Roster

PREFILL_CHUNK_TOKENS = 1024
"""New tokens of one admission: enough rows for fast products, few enough to stop soon after."""


@dataclass(frozen=True)
class Limits:
    """At most ``max_batch`` samples together, holding at most ``kv_tokens`` tokens in the end.

    ``refill`` samples must have left before new ones are prefilled: a prefill of one short prompt
    costs nearly as much as one of several. A sample that fits nowhere still runs alone.
    """

    max_batch: int
    kv_tokens: int
    refill: int = 1


class Admission:
    """``shared``: a prompt's keys and values are held once, not by every row."""

    def __init__(self, roster: Roster, limits: Limits, *, shared: bool) -> None:
        self._roster = roster
        self._limits = limits
        self._shared = shared
        self._waiting: deque[int] = deque()
        self._to_come: Counter[int] = Counter()  # samples by prompt
        self._present: Counter[int] = Counter()
        self._held: set[int] = set()
        self._freed: set[int] = set()
        self._running = 0
        self._prompt_tokens = 0
        self._max_tokens = 0

    @property
    def waiting(self) -> list[int]:
        """Samples not admitted yet, in request order."""
        return list(self._waiting)

    def join(self, samples: Sequence[int]) -> None:
        """Samples of the roster queue up."""
        self._waiting.extend(samples)
        self._to_come.update(self._prompts_of(samples))
        # All rows are as wide as the widest, so the longest counts for each.
        self._prompt_tokens = max(map(len, self._roster.prompts), default=0)
        self._max_tokens = max((task.max_tokens for task in self._roster.samples), default=0)

    def withdraw(self, samples: Collection[int]) -> list[int]:
        """Of ``samples``, those that wait leave the queue; returns them."""
        gone = [sample for sample in self._waiting if sample in samples]
        for sample in gone:
            self._waiting.remove(sample)
        self._to_come.subtract(self._prompts_of(gone))
        self._release(gone)
        return gone

    def next(self) -> list[int]:
        """Samples to admit now, possibly none; one at least if nothing runs and some wait."""
        room = self._limits.max_batch - self._running
        if self._running and room < min(self._limits.refill, len(self._waiting)):
            return []
        admitted: list[int] = []
        prefill = 0
        while self._waiting and len(admitted) < room:
            task = self._roster.samples[self._waiting[0]]
            prefill += len(task.tokens)
            if task.prompt not in self._held:
                prefill += len(self._roster.prompts[task.prompt])
            if self._running and not self._fits(task.prompt):
                break
            if admitted and prefill > PREFILL_CHUNK_TOKENS:
                break
            self._running += 1
            self._held.add(task.prompt)
            self._freed.discard(task.prompt)
            self._present[task.prompt] += 1
            self._to_come[task.prompt] -= 1
            admitted.append(self._waiting.popleft())
        self._release(admitted)
        return admitted

    def left(self, samples: Sequence[int]) -> None:
        """Samples are no longer in the batch."""
        self._running -= len(samples)
        self._present.subtract(self._prompts_of(samples))
        self._release(samples)

    def freed(self) -> list[int]:
        """Prompts whose keys and values nothing needs any more, since the last time. They may be
        needed again when further samples join."""
        freed, self._freed = sorted(self._freed), set()
        return freed

    def _fits(self, prompt: int) -> bool:
        prompts = len(self._held | {prompt})
        row_tokens = self._max_tokens + (0 if self._shared else self._prompt_tokens)
        held = (self._running + 1) * row_tokens + prompts * self._prompt_tokens
        return held <= self._limits.kv_tokens

    def _release(self, samples: Sequence[int]) -> None:
        for prompt in self._prompts_of(samples):
            read = self._shared and self._present[prompt]
            if not self._to_come[prompt] and not read and prompt in self._held:
                self._held.remove(prompt)
                self._freed.add(prompt)

    def _prompts_of(self, samples: Sequence[int]) -> list[int]:
        return [self._roster.samples[sample].prompt for sample in samples]
