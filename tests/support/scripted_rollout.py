"""A rollout call as a script on the loop's clock: a token for every running sample an iteration.

A sample's tokens follow from its seed alone, as with the real engine, so they are the same wherever
and however often it is moved. Calls can be steered like real ones.
"""

from __future__ import annotations

import array
import asyncio
import random
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

from rlhfless.errors import TransientError
from rlhfless.messages import (
    AnyFrame,
    Drain,
    Finished,
    Heartbeat,
    Progress,
    Released,
    RolloutDone,
    RolloutRequest,
    SampleTask,
    SteerRequest,
    Tokens,
)
from rlhfless.seeds import uniform

ITERATION_S = 0.01


def sample_length(task: SampleTask) -> int:
    """Long-tailed: mostly short, a few up to the limit."""
    return max(1, min(task.max_tokens, int(2 / (1.001 - uniform(task.seed, 1 << 20)))))


def sample_token(task: SampleTask, position: int) -> int:
    return 4 + int(uniform(task.seed, position) * 60)


@dataclass
class Faults:
    """Chances, per frame of a rollout or per call of another function, of something going wrong.

    Of a steer: ``unsteered`` is refused, ``unheard`` is taken though the answer says it is not.
    """

    rng: random.Random
    lost: float = 0.0
    drained: float = 0.0
    refused: float = 0.0
    repeated: float = 0.0
    unsteered: float = 0.0
    unheard: float = 0.0

    def strikes(self, chance: float) -> bool:
        return chance > 0 and self.rng.random() < chance


class ScriptedRollout:
    """One call. ``generated``: tokens each sample id cost, over all calls."""

    def __init__(self, request: RolloutRequest, faults: Faults, generated: dict[str, int]) -> None:
        self._request = request
        self._faults = faults
        self._generated = generated
        self._changes: list[SteerRequest] = []
        self._last_change = 0
        self._closed = False
        self._prompts = 0
        self._tasks: list[SampleTask] = []
        self._held: list[int] = []
        self._waiting: list[int] = []
        self._live: list[int] = []
        self._iterations = self._tokens = self._context_tokens = self._prefilled = 0
        self._next_progress_s = asyncio.get_running_loop().time() + request.progress_s
        self._join(request.prompts, request.samples)

    def steer(self, change: SteerRequest) -> bool:
        if self._faults.strikes(self._faults.unsteered):
            return False
        if change.number > self._last_change:
            if self._closed or change.number != self._last_change + 1:
                return False
            self._last_change = change.number
            self._changes.append(change)
        return not self._faults.strikes(self._faults.unheard)

    async def frames(self) -> AsyncGenerator[AnyFrame]:
        """Raises ``TransientError`` where the stream is lost."""
        try:
            while self._changes or self._waiting or self._live:
                for frame in self._change():
                    yield frame
                self._admit()
                for frame in self._end():  # samples that came complete
                    yield frame
                if not self._live:
                    continue
                await asyncio.sleep(ITERATION_S)
                if self._faults.strikes(self._faults.lost):
                    raise TransientError("the stream broke")
                if self._faults.strikes(self._faults.drained):
                    yield Drain(reason="SIGTERM")
                    break
                for frame in self._iterate():
                    yield frame
        finally:
            self._closed = True
        for frame in self._change():
            yield frame
        yield Heartbeat(busy_s=self._iterations * ITERATION_S)
        yield RolloutDone(
            unfinished=sorted(self._live + self._waiting),
            iterations=self._iterations,
            generated_tokens=self._tokens,
            context_tokens=self._context_tokens,
            decode_s=self._iterations * ITERATION_S,
            prefill_computed=self._prefilled,
        )

    def _change(self) -> Iterator[AnyFrame]:
        changes, self._changes = self._changes, []
        for change in changes:
            self._join(change.prompts, change.samples)
            asked = set(change.release)
            assert all(0 <= index < len(self._tasks) for index in asked)
            gone = sorted(asked.intersection(self._live + self._waiting))
            self._live = [i for i in self._live if i not in asked]
            self._waiting = [i for i in self._waiting if i not in asked]
            if gone:
                yield Released(samples=gone)

    def _join(self, prompts: list[list[int]], tasks: list[SampleTask]) -> None:
        self._prompts += len(prompts)
        self._prefilled += sum(map(len, prompts))
        assert all(0 <= task.prompt < self._prompts for task in tasks)
        first = len(self._tasks)
        self._tasks += tasks
        self._held += [len(task.tokens) for task in tasks]
        self._waiting += range(first, len(self._tasks))

    def _admit(self) -> None:
        room = (self._request.max_batch or len(self._tasks)) - len(self._live)
        self._live += self._waiting[:room]
        del self._waiting[:room]

    def _iterate(self) -> Iterator[AnyFrame]:
        live = self._live
        self._iterations += 1
        self._tokens += len(live)
        yield self._frame(live)
        if self._faults.strikes(self._faults.repeated):
            yield self._frame(live)
        for index in live:
            task = self._tasks[index]
            self._generated[task.id] = self._generated.get(task.id, 0) + 1
            self._held[index] += 1
            self._context_tokens += self._held[index]
        yield from self._end()
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_progress_s:
            self._next_progress_s = now_s + self._request.progress_s
            yield Progress(
                running=len(self._live),
                waiting=len(self._waiting),
                kv_tokens=sum(self._held[i] for i in self._live),
                iterations=self._iterations,
            )

    def _end(self) -> Iterator[AnyFrame]:
        ended = [i for i in self._live if self._held[i] >= sample_length(self._tasks[i])]
        self._live = [i for i in self._live if i not in ended]
        if ended:
            yield Finished(
                samples=ended,
                reasons=[
                    "length" if self._held[i] == self._tasks[i].max_tokens else "stop"
                    for i in ended
                ],
            )

    def _frame(self, live: list[int]) -> Tokens:
        return Tokens(
            samples=list(live),
            starts=[self._held[i] for i in live],
            counts=[1] * len(live),
            tokens=[sample_token(self._tasks[i], self._held[i]) for i in live],
            logprobs=array.array("f", [-1.0] * len(live)).tobytes(),
            version=self._request.model.version,
        )
