"""Functions that mean what they say: the simulated platform's calls, with answers worth checking.

The simulated platform knows how long things take and what dies; here every answer gets the content
that ``Functions`` gives it. Its own answers about lengths, ends and places are held against what
the job expects, so it is fuzzed as well.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from controller.platforms.base import Instance, Platform
from rlhfless.messages import (
    TERMINAL,
    AnyFrame,
    Finished,
    FunctionName,
    Request,
    RolloutRequest,
    SampleTask,
    SteerRequest,
    Tokens,
)
from simulator.fuzz import truth
from simulator.fuzz.functions import Functions
from simulator.fuzz.trace import Violation


@dataclass
class _Rollout:
    """A rollout call that runs: its samples, with what joined them since, and how many tokens of
    each were sent. ``changes``: the number of the last one."""

    tasks: list[SampleTask]
    sent: list[int] = field(default_factory=list)
    changes: int = 0


@dataclass
class AnsweringPlatform:
    """``inner``, whose answers are ``functions``'."""

    inner: Platform
    functions: Functions
    _rollouts: dict[str, _Rollout] = field(default_factory=dict)

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame]:
        functions = self.functions
        functions.check(request)
        if isinstance(request, RolloutRequest):
            async with aclosing(self._rollout(request)) as told:
                async for frame in told:
                    yield frame
            return
        earlier = functions.first_result(request)
        async with aclosing(self.inner.invoke(request)) as frames:
            async for frame in frames:
                if not isinstance(frame, TERMINAL):
                    yield frame
                    continue
                result = earlier or functions.answer(request, frame)
                functions.keep_result(request, result)
                yield result

    async def _rollout(self, request: RolloutRequest) -> AsyncGenerator[AnyFrame]:
        call = self._rollouts[request.call.id] = _Rollout(list(request.samples))
        try:
            async with aclosing(self.inner.invoke(request)) as frames:
                async for frame in frames:
                    call.sent += [len(task.tokens) for task in call.tasks[len(call.sent) :]]
                    if isinstance(frame, Tokens):
                        yield _meant(frame, call)
                        continue
                    if isinstance(frame, Finished):
                        self._check_ends(frame, call)
                    yield frame
        finally:
            if self._rollouts.get(request.call.id) is call:
                del self._rollouts[request.call.id]

    def _check_ends(self, frame: Finished, call: _Rollout) -> None:
        for index in frame.samples:
            sample = self.functions.expected.by_id[call.tasks[index].id]
            if call.sent[index] != sample.length:
                raise Violation(f"{sample.id} ends after {call.sent[index]} of {sample.length}")

    async def steer(self, request: SteerRequest) -> bool:
        call = self._rollouts.get(request.target)
        if call is not None and request.number > call.changes:
            for task in request.samples:
                sample = self.functions.expected.by_id[task.id]
                self.functions.check_task(task, list(sample.prompt.tokens), sample.version)
            # Before the answer: the first tokens may be faster. A refused change is the last one
            # that could have been taken, so what it would have added is in nobody's way.
            call.changes = request.number
            call.tasks += request.samples
        return await self.inner.steer(request)

    def runs(self, call: str) -> bool:
        return call in self._rollouts

    def tasks(self, call: str) -> list[SampleTask]:
        """The samples of a rollout call that runs, those that joined it included."""
        return self._rollouts[call].tasks

    async def scale(self, function: FunctionName, count: int) -> None:
        await self.inner.scale(function, count)

    def instances(self) -> tuple[Instance, ...]:
        return self.inner.instances()

    async def close(self) -> None:
        await self.inner.close()


def _meant(frame: Tokens, call: _Rollout) -> Tokens:
    """The frame with each sample's own tokens."""
    tokens: list[int] = []
    logprobs = bytearray()
    for index, start, count in zip(frame.samples, frame.starts, frame.counts, strict=True):
        task = call.tasks[index]
        if start != call.sent[index]:
            raise Violation(f"{task.id}: the function skips from {call.sent[index]} to {start}")
        call.sent[index] += count
        tokens += truth.tokens(task.seed, start, count)
        logprobs += truth.logprobs(task.seed, frame.version, start, count)
    return msgspec.structs.replace(frame, tokens=tokens, logprobs=bytes(logprobs))
