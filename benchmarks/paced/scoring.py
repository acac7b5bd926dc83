"""Reward and reference functions that take their time, and say what follows from the tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from benchmarks.paced.pace import PACE
from functions.context import CallContext, Function, FunctionConfig, Handler
from rlhfless.errors import TransientError
from rlhfless.messages import (
    Frame,
    Heartbeat,
    LogprobsDone,
    LogprobsRequest,
    Request,
    RewardDone,
    RewardRequest,
)

SLICE_S = 0.05
HEARTBEAT_S = 1.0


def wait(seconds: float, context: CallContext) -> Iterator[Frame]:
    """Let so much time pass. Raises ``TransientError`` when told to stop."""
    began = beat = time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0:
        if context.stop_reason is not None:
            raise TransientError(f"stopped ({context.stop_reason}) before it was done")
        time.sleep(min(left, SLICE_S))
        if time.monotonic() - beat > HEARTBEAT_S:
            beat = time.monotonic()
            yield Heartbeat(busy_s=beat - began)


class _Scoring:
    def __init__(self, handlers: Mapping[type[Request], Handler]) -> None:
        self.handlers = handlers

    def close(self) -> None:
        pass


def _reward(request: RewardRequest, context: CallContext) -> Iterator[Frame]:
    tokens = sum(map(len, request.completion_ids))
    tokens += sum(str(prompt).count(" ") + 1 for prompt in request.prompts)
    yield from wait(PACE.score_s + PACE.score_token_s * tokens, context)
    totals = [sum(ids) % 101 / 100 for ids in request.completion_ids]
    yield RewardDone(scores=[list(totals) for _ in request.functions], totals=totals)


def _reference(request: LogprobsRequest, context: CallContext) -> Iterator[Frame]:
    count = sum(map(len, request.responses))
    tokens = count + sum(map(len, request.prompts))
    yield from wait(PACE.score_s + PACE.score_token_s * tokens, context)
    logprobs = np.full(count, -math.log(100), dtype="<f4")
    yield LogprobsDone(logprobs=logprobs.tobytes())


def create_reward(_: FunctionConfig) -> Function:
    return _started({RewardRequest: _reward})


def create_reference(_: FunctionConfig) -> Function:
    return _started({LogprobsRequest: _reference})


def _started(handlers: dict[type[Request], Callable[..., Iterator[Frame]]]) -> Function:
    time.sleep(PACE.start_s)
    return _Scoring(handlers)
