"""Which waiting samples enter the batch next. Pure bookkeeping; request order is kept.

A sample is admitted only if the longest possible responses of all that run still fit, so nothing
that runs ever has to be thrown out for memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rlhfless.messages import RolloutRequest

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

    def __init__(
        self, request: RolloutRequest, waiting: Sequence[int], limits: Limits, *, shared: bool
    ) -> None:
        self._request = request
        self._limits = limits
        self._shared = shared
        self._waiting = deque(waiting)
        self._to_come = [0] * len(request.prompts)
        for sample in waiting:
            self._to_come[request.samples[sample].prompt] += 1
        self._present = [0] * len(request.prompts)
        self._held: set[int] = set()
        self._running = 0
        # All rows are as wide as the widest, so the longest counts for each.
        self._prompt_tokens = max((len(prompt) for prompt in request.prompts), default=0)
        self._row_tokens = max((task.max_tokens for task in request.samples), default=0)
        if not shared:
            self._row_tokens += self._prompt_tokens

    @property
    def waiting(self) -> list[int]:
        """Samples not admitted yet, in request order."""
        return list(self._waiting)

    def next(self) -> list[int]:
        """Samples to admit now, possibly none; one at least if nothing runs and some wait."""
        room = self._limits.max_batch - self._running
        if self._running and room < min(self._limits.refill, len(self._waiting)):
            return []
        admitted: list[int] = []
        prefill = 0
        while self._waiting and len(admitted) < room:
            task = self._request.samples[self._waiting[0]]
            prefill += len(task.tokens)
            if task.prompt not in self._held:
                prefill += len(self._request.prompts[task.prompt])
            if self._running and not self._fits(task.prompt):
                break
            if admitted and prefill > PREFILL_CHUNK_TOKENS:
                break
            self._running += 1
            self._held.add(task.prompt)
            self._present[task.prompt] += 1
            self._to_come[task.prompt] -= 1
            admitted.append(self._waiting.popleft())
        for sample in admitted:
            self._release(self._request.samples[sample].prompt)
        return admitted

    def exhausted(self, admitted: Sequence[int]) -> list[int]:
        """Prompts of samples just admitted of which no further sample will come."""
        prompts = {self._request.samples[sample].prompt for sample in admitted}
        return [prompt for prompt in sorted(prompts) if self._to_come[prompt] == 0]

    def left(self, samples: Sequence[int]) -> None:
        """Samples are no longer in the batch."""
        for sample in samples:
            prompt = self._request.samples[sample].prompt
            self._running -= 1
            self._present[prompt] -= 1
            self._release(prompt)

    def _fits(self, prompt: int) -> bool:
        prompts = len(self._held | {prompt})
        held = (self._running + 1) * self._row_tokens + prompts * self._prompt_tokens
        return held <= self._limits.kv_tokens

    def _release(self, prompt: int) -> None:
        if self._to_come[prompt] == 0 and not (self._shared and self._present[prompt]):
            self._held.discard(prompt)
