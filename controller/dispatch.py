"""Calls to functions, with the retries that errors of their family allow.

Only ``transient`` and ``capacity`` errors are retried, a bounded number of times, after a jittered
pause. A call keeps its id over its attempts, so a retry of work that was in fact done returns the
first result.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from controller.platforms.base import Platform
from controller.timeline import Timeline
from rlhfless.batches import decode_batch
from rlhfless.errors import CapacityError, InternalError, RlhflessError, is_retryable
from rlhfless.messages import (
    ROUTES,
    AnyFrame,
    Frame,
    FunctionName,
    GradientsRequest,
    Heartbeat,
    LogprobsRequest,
    Request,
    RewardRequest,
    RolloutDone,
    SteerRequest,
)

F = TypeVar("F", bound=Frame)


@dataclass(frozen=True)
class RetryPolicy:
    """``attempts`` in all; pauses grow from ``base_s`` by factors of 3, each times 0.5 to 1.5."""

    attempts: int = 3
    base_s: float = 0.1

    def pause_s(self, failures: int, rng: random.Random) -> float:
        """Seconds to wait after the given number of failures (1 or more)."""
        factor: float = 3.0 ** (failures - 1)
        return self.base_s * factor * rng.uniform(0.5, 1.5)


class Dispatcher:
    """Carries calls of one job. ``rng`` only spreads retries; it never touches results."""

    def __init__(
        self, platform: Platform, timeline: Timeline, rng: random.Random, retry: RetryPolicy
    ) -> None:
        self.platform = platform
        self.timeline = timeline
        self.retry = retry
        self._rng = rng

    async def stream(self, request: Request) -> AsyncGenerator[AnyFrame]:
        """One attempt of a call: its frames, heartbeats left out, the terminal frame last.

        Books the call's wall time and, of that, the seconds the function worked; what on, as far as
        request or result tell.
        """
        function, _ = ROUTES[type(request)]
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        busy_s = load_s = 0.0
        work = _work(request)
        try:
            async with aclosing(self.platform.invoke(request)) as frames:
                async for frame in frames:
                    if isinstance(frame, Heartbeat):
                        busy_s, load_s = frame.busy_s, frame.load_s
                        continue
                    if isinstance(frame, RolloutDone):
                        work = _told_s(frame)
                    yield frame
        finally:
            self.timeline.add(function, start_s, loop.time(), busy_s, load_s, work)

    async def steer(self, request: SteerRequest) -> bool:
        """Change a running call; False if it cannot be changed (``Platform.steer``)."""
        return await self.platform.steer(request)

    def warm(self, function: FunctionName) -> int:
        """Instances of a function that are past their cold start."""
        instances = self.platform.instances()
        return sum(i.function == function and i.state in ("idle", "busy") for i in instances)

    async def call(self, request: Request, result: type[F]) -> F:
        """One unary call; returns its terminal frame. Raises the call's error, or
        ``InternalError`` when its retries are used up."""
        failures = 0
        while True:
            try:
                return await self._attempt(request, result)
            except RlhflessError as error:
                failures += 1
                await self.pause_or_raise(request, error, failures)

    async def pause_or_raise(self, request: Request, error: RlhflessError, failures: int) -> None:
        """After a failed attempt: wait before the next one, or give up with a clear error."""
        if not is_retryable(error):
            raise error
        if failures >= self.retry.attempts:
            function, _ = ROUTES[type(request)]
            family = CapacityError if isinstance(error, CapacityError) else InternalError
            raise family(
                f"the {function} function failed {failures} times in a row: {error.detail}",
                hint=error.hint or "see the function's log in the run's logs/ folder",
            ) from error
        await asyncio.sleep(self.retry.pause_s(failures, self._rng))

    async def _attempt(self, request: Request, result: type[F]) -> F:
        last: AnyFrame | None = None
        async with aclosing(self.stream(request)) as frames:
            async for frame in frames:
                last = frame
        if not isinstance(last, result):
            raise InternalError(f"expected {result.__name__}, got {type(last).__name__}")
        return last


def _told_s(done: RolloutDone) -> float:
    """Seconds of a rollout call that its result accounts for."""
    loaded_s = done.weights_pull_s + done.kv_load_s + done.kv_publish_s
    return done.prefill_s + done.decode_s + loaded_s


def _work(request: Request) -> float:
    """What a call's time depends on, where its answer does not say: samples of a reward call,
    tokens of a log-probs or gradients call."""
    match request:
        case RewardRequest():
            return len(request.sample_ids)
        case LogprobsRequest():
            return sum(map(len, request.prompts)) + sum(map(len, request.responses))
        case GradientsRequest():
            part = decode_batch(request.batch)
            return len(part.prompt_tokens) + len(part.response_tokens)
        case _:
            return 0
