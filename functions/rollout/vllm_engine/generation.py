"""One rollout call on vLLM: its samples go in as requests, their deltas come out as frames.

Which samples run together is for vLLM's scheduler to say; here they only wait for a place among the
call's ``max_batch``. A sample that is continued is a request whose prompt ends in what it has.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from vllm import SamplingParams, TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from functions.context import CallContext
from functions.rollout.engine import RolloutFrame
from functions.rollout.request import check_release, check_roster, split_finished
from functions.rollout.roster import Roster
from functions.rollout.vllm_engine.runtime import Delta, Deltas, Generate, Runtime
from rlhfless.errors import InternalError, RlhflessError, TransientError
from rlhfless.messages import (
    Finished,
    FinishReason,
    Progress,
    Released,
    RolloutDone,
    RolloutRequest,
    SampleTask,
    SteerRequest,
    Tokens,
)
from rlhfless.seeds import derive

FLUSH_S = 0.05
"""Tokens wait no longer than this: what a killed instance loses."""
ABORT_S = 1.0
"""How long to wait for the end of what was aborted before looking again whether there is one."""


@dataclass(frozen=True)
class Serving:
    """What a call is served with. ``salt``: keeps its keys and values apart from those of other
    weights; ``transfer``: for the KV connector."""

    config: Any
    version: int
    salt: str
    max_batch: int
    lora: LoRARequest | None = None
    transfer: dict[str, Any] | None = None


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
        runtime: Runtime,
        serving: Serving,
    ) -> None:
        self._name = name
        self._request = request
        self._roster = roster
        self._context = context
        self._runtime = runtime
        self._serving = serving
        vocabulary = serving.config.get_text_config().vocab_size
        self._stops = [s for s in request.sampling.stop_token_ids if 0 <= s < vocabulary]
        self._waiting: deque[int] = deque()
        self._rows: dict[int, _Row] = {}
        self._handed_back: list[int] = []
        self._ended: list[tuple[int, FinishReason]] = []
        self._sending: dict[int, _Row] = {}  # rows that have left, with what is not sent
        self._deltas: Deltas = queue.SimpleQueue()
        self._releasing: set[int] = set()
        self._error: BaseException | None = None
        self._num_requests = 0
        self._generated = self._computed = self._reused = self._context_tokens = 0
        self._prefill_s = self._decode_s = 0.0
        self._iterations = runtime.stats.iterations
        self._looked_s = time.perf_counter()

    def frames(self) -> Iterator[RolloutFrame]:
        """All but the terminal one. Raises ``UserError`` for a change that cannot be carried out,
        and ``TransientError`` if the engine fails; everything generated is yielded before."""
        context, clock = self._context, time.perf_counter
        next_flush = clock() + FLUSH_S
        next_progress = clock() + self._request.progress_s
        try:
            yield from self._enter(0)
            while context.stop_reason is None and self._error is None:
                yield from self._change(context.take())
                self._admit()
                if self._rows:
                    self._look(max(0.0, min(next_flush, next_progress) - clock()))
                elif self._waiting:
                    break  # nothing more is admitted: other weights are served now
                elif changes := context.close_inbox():
                    yield from self._change(changes)
                else:
                    break
                now = clock()
                if now >= next_flush:
                    yield from self._unsent()
                    next_flush = clock() + FLUSH_S
                if now >= next_progress:
                    yield self._progress()
                    next_progress = clock() + self._request.progress_s
            self._abort(list(self._rows))
            while changes := context.close_inbox():  # taken, so they count for what is unfinished
                yield from self._change(changes)
        finally:
            self._abort(list(self._rows))
        yield from self._unsent()
        if self._error is not None:
            raise _told(self._error)

    def done(self) -> RolloutDone:
        """What became of the call, when its frames are through."""
        stats = self._runtime.stats
        return RolloutDone(
            unfinished=sorted([*self._waiting, *self._handed_back]),
            generated_tokens=self._generated,
            prefill_computed=self._computed,
            prefill_saved=self._reused,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
            iterations=max(0, stats.iterations - self._iterations),
            context_tokens=self._context_tokens,
            max_batch=self._serving.max_batch,
            kv_capacity=stats.kv_capacity,
        )

    # --- what goes in -------------------------------------------------------------------------

    def _admit(self) -> None:
        fresh: list[Generate] = []
        while self._waiting and len(self._rows) < self._serving.max_batch:
            if self._handed_back:
                break
            sample = self._waiting.popleft()
            fresh.append(self._asked(sample, self._roster.samples[sample]))
        if fresh:
            self._runtime.generate(fresh, self._deltas)

    def _asked(self, sample: int, task: SampleTask) -> Generate:
        tokens = self._roster.prompts[task.prompt] + task.tokens
        self._num_requests += 1
        row = _Row(f"{self._name}-{self._num_requests}", len(tokens), len(task.tokens))
        self._rows[sample] = row
        sampling = self._request.sampling
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            # What follows a token depends on the sample and on where it was taken up, so that a
            # repeat is the same and a continuation does not draw what was drawn before.
            seed=derive(task.seed, len(task.tokens)),
            stop_token_ids=self._stops,
            ignore_eos=True,
            max_tokens=task.max_tokens - len(task.tokens),
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=_extra(self._serving.transfer),
        )
        prompt = TokensPrompt(prompt_token_ids=tokens, cache_salt=self._serving.salt)
        return Generate(row.id, sample, prompt, params, self._serving.lora)

    # --- what comes out -----------------------------------------------------------------------

    def _look(self, wait_s: float) -> None:
        """Take the deltas there are; wait for the first."""
        try:
            delta = self._deltas.get(timeout=wait_s)
        except queue.Empty:
            return
        prefilled = False
        while True:
            prefilled |= self._take(delta)
            try:
                delta = self._deltas.get_nowait()
            except queue.Empty:
                break
        now_s = time.perf_counter()
        if prefilled:
            self._prefill_s += now_s - self._looked_s
        else:
            self._decode_s += now_s - self._looked_s
        self._looked_s = now_s

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
            self._error = delta.error
        if delta.end is not None or delta.error is not None:
            self._left(delta)
        return first

    def _left(self, delta: Delta) -> None:
        sample = delta.key
        self._sending[sample] = self._rows.pop(sample)
        if delta.end is not None and delta.end != "abort":
            self._ended.append((sample, delta.end))
        elif sample not in self._releasing:
            self._handed_back.append(sample)

    def _abort(self, samples: Sequence[int]) -> None:
        """The samples leave the engine, with what they have by then."""
        if not samples or self._runtime.dead:
            return
        self._runtime.abort([self._rows[sample].id for sample in samples])
        while self._error is None and any(sample in self._rows for sample in samples):
            self._look(ABORT_S)

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
        stats = self._runtime.stats
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
        self._releasing = wanted
        running = [sample for sample in self._rows if sample in wanted]
        queued = [sample for sample in self._waiting if sample in wanted]
        returned = [sample for sample in self._handed_back if sample in wanted]
        self._abort(running)
        self._releasing = set()
        ended = {sample for sample, _ in self._ended}
        self._waiting = deque(sample for sample in self._waiting if sample not in wanted)
        self._handed_back = [sample for sample in self._handed_back if sample not in wanted]
        released = [*queued, *returned, *(sample for sample in running if sample not in ended)]
        if released:
            yield from self._unsent()
            yield Released(samples=sorted(released))


def _extra(transfer: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if transfer is None else {"kv_transfer_params": transfer}


def _told(error: BaseException) -> RlhflessError:
    if isinstance(error, EngineDeadError):
        return TransientError("vLLM's engine has died; it is started again")
    return InternalError(f"vLLM failed: {type(error).__name__}: {error}")
