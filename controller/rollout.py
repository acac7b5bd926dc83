"""Rollout of a step: one stream for each actor, every token collected as it arrives.

An actor is a call that was given some of the step's samples. When its stream breaks, drains or
reaches its deadline, what is left of its samples goes to the next call, on whichever instance the
platform finds, from the last token that arrived. Only a call that fails without a single new token
counts against the actor's retries, so many preemptions in a long rollout are not a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from controller.collector import Collector, FinishedSample
from controller.job import Job
from controller.requests import rollout_request
from rlhfless.errors import InternalError, RlhflessError, TransientError
from rlhfless.messages import Finished, RolloutDone, RolloutRequest, Tokens
from scaling.decode_cost import DecodeCall

OnFinished = Callable[[list[FinishedSample]], Awaitable[None]]


@dataclass
class RolloutStats:
    """Sums over the calls of a rollout; prompt tokens computed and saved by sharing; seconds."""

    prefill_computed: int = 0
    prefill_saved: int = 0
    generated_tokens: int = 0
    weights_pull_s: float = 0.0
    weights_bytes: int = 0
    lost_calls: int = 0
    decode_calls: list[DecodeCall] = field(default_factory=list)

    def add(self, done: RolloutDone) -> None:
        self.prefill_computed += done.prefill_computed
        self.prefill_saved += done.prefill_saved
        self.generated_tokens += done.generated_tokens
        self.weights_pull_s = max(self.weights_pull_s, done.weights_pull_s)
        self.weights_bytes += done.weights_bytes
        self.decode_calls.append(
            DecodeCall(
                iterations=done.iterations, tokens=done.generated_tokens, decode_s=done.decode_s
            )
        )


@dataclass(frozen=True)
class RolloutTask:
    """What to generate, with which version; ``name`` tells calls of one step apart."""

    step: int
    version: int
    name: str = "actor"
    temperature: float | None = None


async def run_rollout(
    job: Job,
    task: RolloutTask,
    collector: Collector,
    assignment: Sequence[Sequence[str]],
    on_finished: OnFinished,
) -> RolloutStats:
    """Generate every sample of ``assignment`` (one list of ids an actor) that is not finished.

    ``on_finished`` is awaited with samples as they end, in the order they end on each actor.
    Raises the first error that retries could not cure.
    """
    stats = RolloutStats()
    async with asyncio.TaskGroup() as group:
        for index, ids in enumerate(assignment):
            actor = _Actor(job, task, collector, list(ids), f"{task.name}-{index}", stats)
            group.create_task(actor.run(on_finished), name=f"rollout-{actor.name}")
    return stats


class _Actor:
    """The succession of calls that finishes one list of samples."""

    def __init__(
        self,
        job: Job,
        task: RolloutTask,
        collector: Collector,
        ids: list[str],
        name: str,
        stats: RolloutStats,
    ) -> None:
        self._job = job
        self._task = task
        self._collector = collector
        self._ids = ids
        self.name = name
        self._stats = stats
        self._new_tokens = 0

    async def run(self, on_finished: OnFinished) -> None:
        failures = attempt = 0
        while left := self._collector.remaining(self._ids):
            request = rollout_request(
                self._job,
                self._task.step,
                self._task.version,
                self._collector,
                left,
                f"{self.name}-{attempt}",
                self._task.temperature,
            )
            attempt += 1
            self._new_tokens = 0
            error: RlhflessError | None = None
            try:
                await self._stream(request, left, on_finished)
                if not self._new_tokens and self._collector.remaining(left):
                    error = TransientError(
                        "a rollout call ended without a single token",
                        hint="raise rollout.call_timeout_s if the model is slow to load or prefill",
                    )
            except RlhflessError as raised:
                self._stats.lost_calls += 1
                error = raised
            if error is None:
                continue
            failures = 1 if self._new_tokens else failures + 1
            await self._job.dispatcher.pause_or_raise(request, error, failures)

    async def _stream(
        self, request: RolloutRequest, ids: list[str], on_finished: OnFinished
    ) -> RolloutDone:
        async with aclosing(self._job.dispatcher.stream(request)) as frames:
            async for frame in frames:
                if isinstance(frame, Tokens):
                    self._new_tokens += self._collector.tokens(ids, frame)
                elif isinstance(frame, Finished):
                    complete = self._collector.finished(ids, frame)
                    if complete:
                        await on_finished(complete)
                elif isinstance(frame, RolloutDone):
                    self._stats.add(frame)
                    return frame
        raise InternalError("a rollout stream ended without a result")
