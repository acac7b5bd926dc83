"""An actor of a rollout: the succession of calls that finishes the samples it owns.

When its stream breaks, drains or reaches its deadline, what is left of its samples goes to its
next call, on whichever instance the platform finds, from the last token that arrived. Only a call
that fails without a single new token counts against the retries, so many preemptions in a long
rollout are not a failure.

A running call can be steered: further samples join its batch, others leave it. An actor answers
for a sample from the moment it is given it until the stream says ``Finished`` or ``Released``; if
a steer gets lost, the sample is simply part of the actor's next call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from controller.call_contents import CallContents
from controller.collector import Collector, FinishedSample
from controller.job import Job
from controller.requests import RolloutTask, rollout_request, steer_request
from controller.rollout_stats import RolloutStats
from rlhfless.errors import InternalError, RlhflessError, TransientError
from rlhfless.messages import Finished, Progress, Released, RolloutDone, RolloutRequest, Tokens

OnFinished = Callable[[list[FinishedSample]], Awaitable[None]]
OnReleased = Callable[[list[str]], None]


@dataclass(frozen=True)
class Report:
    """A ``Progress`` and when it came (loop seconds), after so many ``new_tokens``."""

    at_s: float
    progress: Progress
    new_tokens: int


@dataclass
class RunningCall:
    """A call whose stream is open. ``began_s``: loop seconds of its first frame, None before it;
    ``reports``: the first since all its samples were admitted, and the newest.

    ``steerable`` becomes false with the first steer that is not accepted. ``given_up``: samples
    that left it unfinished, and have not come back.
    """

    request: RolloutRequest
    contents: CallContents
    began_s: float | None = None
    new_tokens: int = 0
    given_up: set[str] = field(default_factory=set)
    reports: list[Report] = field(default_factory=list)
    steers: int = 0
    steerable: bool = True
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _NotTaken(Exception):
    """``on_finished`` failed: no fault of the call, and no other call could make up for it."""

    def __init__(self, error: RlhflessError) -> None:
        super().__init__(error.detail)
        self.error = error


class Actor:
    """``run`` ends when everything the actor owns is finished. ``on_finished`` is awaited with
    samples as they end, and its errors end ``run``; ``on_released`` is told which samples were
    given up as asked."""

    def __init__(
        self,
        job: Job,
        task: RolloutTask,
        collector: Collector,
        ids: Sequence[str],
        name: str,
        stats: RolloutStats,
        on_finished: OnFinished,
        on_released: OnReleased,
    ) -> None:
        self.name = name
        self.call: RunningCall | None = None
        self.ended = False
        self._owned = dict.fromkeys(ids)
        self._places: NDArray[np.int64] | None = None
        self._job = job
        self._task = task
        self._collector = collector
        self._stats = stats
        self._on_finished = on_finished
        self._on_released = on_released

    @property
    def left(self) -> list[str]:
        """The samples it answers for that are not finished."""
        return self._collector.remaining(self._owned)

    @property
    def places(self) -> NDArray[np.int64]:
        """Of the samples it answers for in the collector's columns, finished ones among them."""
        if self._places is None:
            places = self._collector.places
            self._places = np.array([places[sample] for sample in self._owned], np.int64)
        return self._places

    @property
    def groups(self) -> set[int]:
        """Those whose prompts it has needed."""
        return {self._collector.samples[sample].group for sample in self._owned}

    async def run(self) -> None:
        """Raises the first error that retries could not cure."""
        failures = attempt = 0
        try:
            while left := self.left:
                call = self._begin(left, attempt)
                attempt += 1
                error = await self._follow(call)
                if error is None:
                    failures = 0
                    continue
                failures = 1 if call.new_tokens else failures + 1
                await self._job.dispatcher.pause_or_raise(call.request, error, failures)
        finally:
            self.ended = True

    def own(self, ids: Sequence[str]) -> None:
        """Answer for further samples from now on; ``feed`` brings them into the running call."""
        self._owned |= dict.fromkeys(ids)
        self._places = None

    async def feed(self, ids: Sequence[str]) -> None:
        """Let owned samples join the running call. If that fails they wait for the next one."""
        call = self.call
        if call is None:
            return
        async with call.lock:
            # A call that began after they were owned has them from its start.
            ids = [i for i in ids if i in call.given_up or i not in call.contents.ids]
            if call is not self.call or not call.steerable or not ids:
                return
            call.steers += 1
            call.given_up.difference_update(ids)
            call.reports = []
            # Before the answer: the first tokens may be faster.
            prompts, tasks = call.contents.add(ids)
            request = steer_request(
                self._job, self._task, call.request, call.steers, prompts=prompts, samples=tasks
            )
            call.steerable = await self._job.dispatcher.steer(request)

    async def release(self, ids: Sequence[str]) -> bool:
        """Ask the running call to give up samples; whether it will."""
        call = self.call
        if call is None:
            return False
        async with call.lock:
            if call is not self.call or not call.steerable:
                return False
            call.steers += 1
            # A sample that came back is there twice: the last one is the live one.
            index = {sample: n for n, sample in enumerate(call.contents.ids)}
            request = steer_request(
                self._job, self._task, call.request, call.steers, release=[index[i] for i in ids]
            )
            call.steerable = await self._job.dispatcher.steer(request)
            return call.steerable

    def _begin(self, ids: Sequence[str], attempt: int) -> RunningCall:
        contents = CallContents(self._collector, dedup=self._job.spec.scheduling.dedup_prefill)
        prompts, samples = contents.add(ids)
        request = rollout_request(self._job, self._task, prompts, samples, f"{self.name}-{attempt}")
        self.call = RunningCall(request, contents)
        return self.call

    async def _follow(self, call: RunningCall) -> RlhflessError | None:
        """Read the call's stream to its end; the error that ended it early, if one did."""
        try:
            await self._stream(call)
        except _NotTaken as failure:
            raise failure.error from failure.error.__cause__
        except RlhflessError as error:
            self._stats.lost_calls += 1
            return error
        finally:
            self.call = None
        if call.new_tokens or call.given_up or not self._collector.remaining(call.contents.ids):
            return None
        return TransientError(
            "a rollout call ended without a single token",
            hint="raise rollout.call_timeout_s if the model is slow to load or prefill",
        )

    async def _stream(self, call: RunningCall) -> None:
        loop = asyncio.get_running_loop()
        ids = call.contents.ids
        async with aclosing(self._job.dispatcher.stream(call.request)) as frames:
            async for frame in frames:
                if call.began_s is None:
                    call.began_s = loop.time()
                if isinstance(frame, Tokens):
                    call.new_tokens += self._collector.tokens(ids, frame)
                elif isinstance(frame, Finished):
                    complete = self._collector.finished(ids, frame)
                    if complete:
                        await self._take(complete)
                elif isinstance(frame, Released):
                    self._gave_up(call, [ids[index] for index in frame.samples])
                elif isinstance(frame, Progress):
                    report = Report(loop.time(), frame, call.new_tokens)
                    # Prefill is no part of an iteration's pace.
                    call.reports = [*([] if frame.waiting else call.reports[:1]), report]
                elif isinstance(frame, RolloutDone):
                    self._stats.add(frame)
                    return
        raise InternalError("a rollout stream ended without a result")

    async def _take(self, complete: list[FinishedSample]) -> None:
        try:
            await self._on_finished(complete)
        except RlhflessError as error:
            raise _NotTaken(error) from error

    def _gave_up(self, call: RunningCall, ids: Sequence[str]) -> None:
        given = [i for i in self._collector.remaining(ids) if i in self._owned]
        for sample in given:
            del self._owned[sample]
        self._places = None
        call.given_up.update(given)
        self._on_released(given)
