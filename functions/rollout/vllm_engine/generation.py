"""One rollout call on vLLM: its samples go in as requests, their deltas come out as frames.

Which samples run together is for vLLM's scheduler to say; here they only wait for a place among the
call's ``max_batch``. A sample that is continued is a request whose prompt ends in what it has.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from functions.context import CallContext
from functions.rollout.engine import RolloutFrame
from functions.rollout.request import check_release, check_roster, split_finished
from functions.rollout.roster import Roster
from functions.rollout.vllm_engine.asking import (
    Adapter,
    Asked,
    Delta,
    Deltas,
    Generate,
    Manner,
)
from rlhfless.errors import RlhflessError, TransientError
from rlhfless.messages import (
    Finished,
    FinishReason,
    Progress,
    Released,
    RolloutDone,
    RolloutRequest,
    SteerRequest,
    Tokens,
)
from rlhfless.seeds import derive

FLUSH_S = 0.05
"""Tokens wait no longer than this: what a killed instance loses."""


@dataclass(frozen=True)
class Serving:
    """What a call is served with: ``Manner`` tells of ``salt``, ``epoch`` and ``adapter``.
    ``transfer``: what to tell the KV connector of a prompt with these cuts."""

    config: Any
    version: int
    salt: str
    epoch: int
    max_batch: int
    adapter: Adapter | None = None
    transfer: Callable[[Sequence[int]], dict[str, Any]] | None = None


@dataclass
class _Row:
    """A sample that runs. ``sent``: response position of the first of ``tokens``, which wait to be
    sent; ``length``: of prompt and response."""

    id: str
    length: int
    sent: int
    begun: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Generation:
    """``frames`` once; ``roster`` has been checked. ``name``: of the call, unique in the engine."""

    def __init__(
        self,
        name: str,
        request: RolloutRequest,
        roster: Roster,
        context: CallContext,
        engine: Asked,
        serving: Serving,
    ) -> None:
        self._name = name
        self._request = request
        self._roster = roster
        self._context = context
        self._engine = engine
        self._serving = serving
        vocabulary = serving.config.get_text_config().vocab_size
        self._manner = Manner(
            sampling=request.sampling,
            stop_token_ids=[s for s in request.sampling.stop_token_ids if 0 <= s < vocabulary],
            salt=serving.salt,
            epoch=serving.epoch,
            adapter=serving.adapter,
        )
        self._waiting: deque[int] = deque()
        self._rows: dict[int, _Row] = {}
        self._handed_back: list[int] = []
        self._ended: list[tuple[int, FinishReason]] = []
        self._sending: dict[int, _Row] = {}  # rows that have left, with what is not sent
        self._deltas: Deltas = queue.SimpleQueue()
        self._aborting: set[int] = set()
        self._superseded = False  # other weights are served now
        self._error: RlhflessError | None = None
        self._num_requests = 0
        self._generated = self._computed = self._reused = self._context_tokens = 0
        self._prefill_s = self._decode_s = 0.0
        self._iterations = engine.stats.iterations
        self._drafted = engine.stats.draft_tokens
        self._accepted = engine.stats.accepted_tokens
        self._looked_s = time.perf_counter()

    def frames(self) -> Iterator[RolloutFrame]:
        """All but the terminal one. Raises ``UserError`` for a change that cannot be carried out,
        and ``TransientError`` if the engine fails; everything generated is yielded before."""
        try:
            yield from self._enter(0)
            yield from self._generating()
            self._abort(list(self._rows))
            while changes := self._context.close_inbox():  # taken, so they count for what is left
                yield from self._change(changes)
        except RlhflessError as error:
            self._error = self._error or error
        finally:
            self._abort(list(self._rows))
        yield from self._unsent()
        if self._error is not None:
            raise self._error

    def _generating(self) -> Iterator[RolloutFrame]:
        """Until nothing is left, or the call is to end."""
        context, clock = self._context, time.perf_counter
        flush_s = max(FLUSH_S, self._request.flush_s)
        next_flush = clock() + flush_s
        next_progress = clock() + self._request.progress_s
        while context.stop_reason is None and self._error is None:
            yield from self._change(context.take())
            self._admit()
            if self._rows:
                self._look(max(0.0, min(next_flush, next_progress) - clock()))
            elif self._waiting:
                return
            elif changes := context.close_inbox():
                yield from self._change(changes)
            else:
                return
            now = clock()
            if now >= next_flush:
                yield from self._unsent()
                next_flush = clock() + flush_s
            if now >= next_progress:
                yield self._progress()
                next_progress = clock() + self._request.progress_s

    def done(self) -> RolloutDone:
        """What became of the call, when its frames are through."""
        stats = self._engine.stats
        return RolloutDone(
            unfinished=sorted([*self._waiting, *self._handed_back]),
            generated_tokens=self._generated,
            prefill_computed=self._computed,
            prefill_saved=self._reused,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
            iterations=max(0, stats.iterations - self._iterations),
            context_tokens=self._context_tokens,
            draft_tokens=max(0, stats.draft_tokens - self._drafted),
            accepted_tokens=max(0, stats.accepted_tokens - self._accepted),
            max_batch=self._serving.max_batch,
            kv_capacity=stats.kv_capacity,
        )

    # --- what goes in -------------------------------------------------------------------------

    def _admit(self) -> None:
        fresh: list[Generate] = []
        while self._waiting and len(self._rows) < self._serving.max_batch and not self._superseded:
            fresh.append(self._asked(self._waiting.popleft()))
        if fresh:
            self._engine.generate(fresh, self._manner, self._deltas)

    def _asked(self, sample: int) -> Generate:
        task = self._roster.samples[sample]
        tokens = self._roster.prompts[task.prompt] + task.tokens
        transfer = self._serving.transfer
        self._num_requests += 1
        row = _Row(f"{self._name}-{self._num_requests}", len(tokens), len(task.tokens))
        self._rows[sample] = row
        return Generate(
            id=row.id,
            key=sample,
            tokens=tokens,
            max_tokens=task.max_tokens - len(task.tokens),
            # What follows a token depends on the sample and on where it was taken up, so that a
            # repeat is the same and a continuation does not draw what was drawn before.
            seed=derive(task.seed, len(task.tokens)),
            transfer=transfer and transfer(self._roster.cuts[task.prompt]),
        )

    # --- what comes out -----------------------------------------------------------------------

    def _look(self, wait_s: float) -> None:
        """Take the deltas there are; wait for the first."""
        try:
            delta = self._deltas.get(timeout=wait_s)
        except queue.Empty:
            if self._engine.dead:
                self._error = TransientError("vLLM's engine has died; it is started again")
            return
        prefilled = self._take(delta) | self._drain()
        now_s = time.perf_counter()
        if prefilled:
            self._prefill_s += now_s - self._looked_s
        else:
            self._decode_s += now_s - self._looked_s
        self._looked_s = now_s

    def _drain(self) -> bool:
        """Take the deltas there are; whether one was the first of a sample."""
        prefilled = False
        while True:
            try:
                prefilled |= self._take(self._deltas.get_nowait())
            except queue.Empty:
                return prefilled

    def _take(self, delta: Delta) -> bool:
        """Whether it was the first of a sample."""
        row = self._rows[delta.key]
        first = not row.begun and bool(delta.tokens)
        if first:
            row.begun = True
            self._computed += row.length - delta.cached
            self._reused += delta.cached
        for _ in delta.tokens:
            self._context_tokens += row.length
            row.length += 1
        row.tokens.extend(delta.tokens)
        row.logprobs.extend(delta.logprobs)
        self._generated += len(delta.tokens)
        if delta.error is not None:
            self._error = self._error or delta.error
        if delta.end is not None or delta.error is not None:
            self._left(delta)
        return first

    def _left(self, delta: Delta) -> None:
        sample = delta.key
        self._sending[sample] = self._rows.pop(sample)
        if delta.end is not None and delta.end != "abort":
            self._ended.append((sample, delta.end))
        else:
            self._handed_back.append(sample)
            self._superseded |= delta.end == "abort" and sample not in self._aborting

    def _abort(self, samples: Sequence[int]) -> None:
        """The samples leave the engine, with what they have by then."""
        if not samples:
            return
        self._aborting.update(samples)
        self._engine.abort([self._rows[sample].id for sample in samples])
        self._drain()

    def _unsent(self) -> Iterator[RolloutFrame]:
        """Frames of all that came since the last time."""
        rows = [(s, row) for s, row in (*self._sending.items(), *self._rows.items()) if row.tokens]
        if rows:
            yield Tokens(
                samples=[sample for sample, _ in rows],
                starts=[row.sent for _, row in rows],
                counts=[len(row.tokens) for _, row in rows],
                tokens=[token for _, row in rows for token in row.tokens],
                logprobs=self._packed([value for _, row in rows for value in row.logprobs]),
                version=self._serving.version,
            )
        for _, row in rows:
            row.sent += len(row.tokens)
            row.tokens, row.logprobs = [], []
        self._sending.clear()
        if self._ended:
            ended, self._ended = self._ended, []
            yield Finished(
                samples=[sample for sample, _ in ended], reasons=[reason for _, reason in ended]
            )

    def _packed(self, logprobs: Sequence[float]) -> bytes:
        values = np.asarray(logprobs, dtype="<f4")
        if self._request.sampling.temperature == 0:
            values[:] = 0.0  # a greedy choice is certain; vLLM tells the model's log-prob of it
        return values.tobytes()

    def _progress(self) -> Progress:
        stats = self._engine.stats
        return Progress(
            running=len(self._rows),
            waiting=len(self._waiting),
            kv_tokens=stats.kv_tokens,
            iterations=max(0, stats.iterations - self._iterations),
        )

    # --- who comes, who goes ------------------------------------------------------------------

    def _change(self, changes: Sequence[SteerRequest]) -> Iterator[RolloutFrame]:
        for change in changes:
            yield from self._unsent()
            prompts, samples = len(self._roster.prompts), len(self._roster.samples)
            self._roster.join(change)
            check_roster(self._roster, self._serving.config, prompts, samples)
            check_release(self._roster, change.release)
            yield from self._enter(samples)
            yield from self._release(change.release)

    def _enter(self, first: int) -> Iterator[RolloutFrame]:
        """Samples ``first ..`` of the roster queue up."""
        waiting, ended = split_finished(self._roster, first, self._request.sampling.stop_token_ids)
        self._waiting.extend(waiting)
        if ended.samples:
            yield ended

    def _release(self, samples: Sequence[int]) -> Iterator[RolloutFrame]:
        """Give samples up, wherever they are; those that have ended stay ended."""
        wanted = set(samples)
        self._abort([sample for sample in self._rows if sample in wanted])
        released = sorted(wanted.intersection((*self._waiting, *self._handed_back)))
        self._waiting = deque(sample for sample in self._waiting if sample not in wanted)
        self._handed_back = [sample for sample in self._handed_back if sample not in wanted]
        if released:
            yield from self._unsent()
            yield Released(samples=released)
