"""The decode loop of one call.

    roster -> Admission (who is next) -> Batch (Decoder + Sampler + Samples) -> frames

Finished samples leave the batch at once and waiting ones take their place, so a long tail pays for
live rows only. A call can be changed while it runs (``SteerRequest``): samples join the queue,
others leave it or the batch, and the rows that stay never notice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from functions.context import CallContext
from functions.rollout.admission import Admission
from functions.rollout.batch import Batch
from functions.rollout.decoder import Decoder
from functions.rollout.engine import RolloutFrame
from functions.rollout.request import check_release, check_roster, split_finished
from functions.rollout.roster import Roster
from functions.rollout.samples import Samples
from rlhfless.messages import Progress, Released, RolloutDone, RolloutRequest, SteerRequest

FLUSH_S = 0.05
"""Tokens wait no longer than this, unless the call allows more: what a killed instance loses."""


class Generation:
    """``frames`` once. ``roster`` holds what ``request`` asks for, and has been checked;
    ``admission`` is empty."""

    def __init__(
        self,
        request: RolloutRequest,
        roster: Roster,
        context: CallContext,
        model: Any,
        version: int,
        decoder: Decoder,
        admission: Admission,
    ) -> None:
        self._request = request
        self._roster = roster
        self._context = context
        self._config = model.config
        self._version = version
        self._decoder = decoder
        self._admission = admission
        stops = request.sampling.stop_token_ids
        self._samples = Samples(roster, stops, model.config.get_text_config().vocab_size)
        self._batch = Batch(request.sampling, roster, decoder, self._samples, model.device)
        self._admitted_tokens = 0
        self._prefill_s = 0.0
        self._decode_s = 0.0
        self._iterations = 0
        self._context_tokens = 0

    def frames(self) -> Iterator[RolloutFrame]:
        """All but the terminal one. Raises ``UserError`` for a change that cannot be carried out,
        after everything drawn is yielded."""
        context, clock = self._context, time.perf_counter
        flush_s = max(FLUSH_S, self._request.flush_s)
        next_flush = clock() + flush_s
        next_progress = clock() + self._request.progress_s
        yield from self._enter(0)
        while context.stop_reason is None:
            yield from self._change(context.take())
            if new := self._admission.next():
                self._admit(new)
            elif self._samples.num_rows:
                self._step()
            elif changes := context.close_inbox():
                yield from self._change(changes)
            else:
                break
            now = clock()
            if now >= next_flush:
                yield from self._unsent()
                next_flush = clock() + flush_s
            if now >= next_progress:
                yield self._progress()
                next_progress = clock() + self._request.progress_s
        while changes := context.close_inbox():  # taken, so they count for what is unfinished
            yield from self._change(changes)
        yield from self._unsent()

    def done(self) -> RolloutDone:
        """What became of the call, when its frames are through."""
        samples, prefilled = self._samples, self._decoder.prefill_tokens
        running = samples.samples_of(range(samples.num_rows))
        return RolloutDone(
            unfinished=sorted(self._admission.waiting + running),
            generated_tokens=samples.num_tokens,
            prefill_computed=prefilled,
            prefill_saved=self._admitted_tokens - prefilled,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
            iterations=self._iterations,
            context_tokens=self._context_tokens,
        )

    # --- an iteration -------------------------------------------------------------------------

    def _admit(self, samples: Sequence[int]) -> None:
        began = time.perf_counter()
        self._left(self._batch.admit(samples))
        self._prefill_s += time.perf_counter() - began
        for task in (self._roster.samples[sample] for sample in samples):
            self._admitted_tokens += len(self._roster.prompts[task.prompt]) + len(task.tokens)

    def _step(self) -> None:
        began = time.perf_counter()
        self._context_tokens += self._samples.context_tokens
        gone = self._batch.step()
        self._iterations += 1
        if gone:
            self._left(gone)
        self._decode_s += time.perf_counter() - began

    def _left(self, samples: Sequence[int]) -> None:
        self._admission.left(samples)
        for prompt in self._admission.freed():
            self._decoder.forget(prompt)

    def _unsent(self) -> Iterator[RolloutFrame]:
        return self._samples.unsent(self._version)

    def _progress(self) -> Progress:
        return Progress(
            running=self._samples.num_rows,
            waiting=len(self._admission.waiting),
            kv_tokens=self._decoder.kv_tokens,
            iterations=self._iterations,
        )

    # --- who comes, who goes ------------------------------------------------------------------

    def _change(self, changes: Sequence[SteerRequest]) -> Iterator[RolloutFrame]:
        for change in changes:
            yield from self._unsent()
            prompts, samples = len(self._roster.prompts), len(self._roster.samples)
            self._roster.join(change)
            check_roster(self._roster, self._config, prompts, samples)
            check_release(self._roster, change.release)
            yield from self._enter(samples)
            yield from self._release(change.release)

    def _enter(self, first: int) -> Iterator[RolloutFrame]:
        """Samples ``first ..`` of the roster queue up. All that was drawn has been sent."""
        if first == len(self._roster.samples):
            return
        waiting, ended = split_finished(self._roster, first, self._request.sampling.stop_token_ids)
        self._samples.join()
        self._admission.join(waiting)
        if ended.samples:
            yield ended

    def _release(self, samples: Sequence[int]) -> Iterator[RolloutFrame]:
        """Give samples up, wherever they are; those that have ended stay ended."""
        if not samples:
            return
        running = self._batch.release(samples)
        released = self._admission.withdraw(samples) + running
        self._left(running)
        if released:
            yield Released(samples=sorted(released))
