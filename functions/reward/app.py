"""The reward function: scores finished samples with every reward of the job, side by side.

Called by the controller as samples finish. Rewards run in their own processes (``python_scorer``),
on a model here (``model_scorer``) or behind a URL (``http_scorer``); they stay loaded between
calls. A sample that no reward applies to is an error, since a total of nothing is no number.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait

from functions.context import CallContext, Function, FunctionConfig, Handler
from functions.reward.process import SLICE_S, CallCancelled
from functions.reward.scorer import Samples
from functions.reward.scorer_cache import ScorerCache
from functions.reward.scores import totals
from rlhfless.errors import InternalError, RlhflessError, TransientError, UserError
from rlhfless.messages import Frame, Heartbeat, Request, RewardDone, RewardFunction, RewardRequest

HEARTBEAT_S = 1.0
MAX_THREADS = 64


def create(config: FunctionConfig) -> Function:
    return RewardScoring(config)


class RewardScoring:
    """See ``Function``. One pool thread per reward of a call in progress."""

    def __init__(self, config: FunctionConfig) -> None:
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="reward")
        self._scorers = ScorerCache(config)
        self._closing = threading.Event()
        self._fresh = True
        self.handlers: Mapping[type[Request], Handler] = {RewardRequest: self.score}

    def score(self, request: RewardRequest, context: CallContext) -> Iterator[Frame]:
        """Heartbeats, then ``RewardDone``.

        Raises ``UserError`` naming the reward and the sample, ``TransientError`` when the call is
        stopped or an endpoint fails; the other rewards of the call are given up then.
        """
        _check(request)
        count = len(request.sample_ids)
        if count == 0:
            yield RewardDone(scores=[[] for _ in request.functions], totals=[])
            return
        unwanted = threading.Event()
        began = time.monotonic()
        samples = Samples(request)
        calls = [
            self._pool.submit(self._score_one, index, function, samples, unwanted)
            for index, function in enumerate(request.functions)
        ]
        try:
            yield from _await(calls, request, context)
            scores = [call.result() for call in calls]
        finally:
            unwanted.set()
        if self._fresh:  # starting the rewards' processes is nearly all of a first call
            self._fresh, context.load_s = False, time.monotonic() - began
        sums = totals(scores, [f.weight for f in request.functions], count)
        for index, total in enumerate(sums):
            if total is None:
                names = ", ".join(f.name for f in request.functions)
                raise UserError(
                    f"no reward applies to {samples.describe(index)}: all of {names} returned None",
                    param="rewards",
                    hint="have one of them return a number (0 if nothing is to be said)",
                )
        yield RewardDone(scores=scores, totals=[t for t in sums if t is not None])

    def close(self) -> None:
        """Ends calls in progress and every process user code runs in."""
        self._closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._scorers.close()

    def _score_one(
        self, index: int, function: RewardFunction, samples: Samples, unwanted: threading.Event
    ) -> list[float | None]:
        def cancelled() -> bool:
            return unwanted.is_set() or self._closing.is_set()

        try:
            with self._scorers.use(function) as scorer:
                return scorer.score(samples, cancelled)
        except RlhflessError as error:
            error.param = error.param or f"rewards.{index}"
            raise


def _await(
    calls: list[Future[list[float | None]]], request: RewardRequest, context: CallContext
) -> Iterator[Frame]:
    """Until all are done or one has failed. Raises the first failure, or that we were stopped."""
    started = said = time.monotonic()
    while True:
        done, waiting = wait(calls, timeout=SLICE_S, return_when=FIRST_EXCEPTION)
        for call in calls:
            if call in done:
                _raise_failure(call)
        if not waiting:
            return
        if context.stop_reason is not None:
            names = [f.name for f, c in zip(request.functions, calls, strict=True) if c in waiting]
            raise TransientError(
                f"stopped ({context.stop_reason}) while waiting for reward {', '.join(names)}"
            )
        now = time.monotonic()
        if now - said >= HEARTBEAT_S:
            said = now
            yield Heartbeat(busy_s=now - started)


def _raise_failure(call: Future[list[float | None]]) -> None:
    try:
        call.result()
    except (CallCancelled, CancelledError):
        raise TransientError("the reward function is closing") from None


def _check(request: RewardRequest) -> None:
    lists = (request.prompts, request.completions, request.completion_ids)
    lengths = {len(entries) for entries in lists} | {len(c) for c in request.columns.values()}
    if not request.functions or lengths - {len(request.sample_ids)}:
        raise InternalError("a reward request needs rewards, and lists of one length")
