"""A rollout call on a simulated instance: its stream of frames.

The batch (``simulator.platform.batch``) says what happens when; this tells it to the controller as
an engine would: tokens of every row at each progress report, a row's last tokens and its end as
they come, what was given up, and the counters at the end. Ends that come within ``FLUSH_S`` are
told together, as the rollout function's engine does, and those within ``FLUSH`` of the call's
expected time, so that a call of thousands of rows makes hundreds of frames. An engine also tells
the tokens of running rows whenever it flushes; here that is left out unless ``Engine.tells`` asks
for it, since nobody decides anything by it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field

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
from simulator.platform.batch import Batch, PromptKv, Row
from simulator.platform.costs import Limits
from simulator.platform.instance import SimulatedInstance
from simulator.platform.lengths import Responses
from simulator.platform.prefixes import PrefixStore, PrefixUsed
from simulator.roofline import EngineCost

FLUSH = 0.005
"""Share of a call's expected seconds."""
FLUSH_S = 0.05
"""What the engine's stream collects before it sends (``functions.rollout.generation``)."""


@dataclass(frozen=True)
class Engine:
    """What calls on an instance are made of. ``tells``: every token within the time in which a
    function tells it, for those who count frames."""

    cost: EngineCost
    limits: Limits
    responses: Responses
    prefixes: PrefixStore
    tells: bool = False


@dataclass
class RolloutCall:
    """``frames`` once; ``steer`` meanwhile. ``slow``: factor on its times."""

    request: RolloutRequest
    instance: SimulatedInstance
    engine: Engine
    slow: float = 1.0
    _changes: list[SteerRequest] = field(default_factory=list)
    _last_change: int = 0
    _closed: bool = False
    _prompts: list[PromptKv] = field(default_factory=list)
    _keys: list[int] = field(default_factory=list)
    _tasks: list[SampleTask] = field(default_factory=list)
    _rows: list[Row] = field(default_factory=list)
    _used: PrefixUsed = field(default_factory=PrefixUsed)

    def steer(self, change: SteerRequest) -> bool:
        """Whether the call takes it."""
        if change.number > self._last_change:
            if self._closed or change.number != self._last_change + 1:
                return False
            self._last_change = change.number
            self._changes.append(change)
            self.instance.wake()
        return True

    async def frames(self) -> AsyncGenerator[AnyFrame]:
        """Raises ``TransientError`` where the instance goes away."""
        loop = asyncio.get_running_loop()
        request, instance = self.request, self.instance
        began_s = loop.time()
        ends_s = began_s + request.call.deadline_s
        loaded_s = await instance.load()
        pulled_bytes, pull_s = await instance.pull(request.model.version)
        limits = self.engine.limits
        rows = min(request.max_batch or limits.max_batch, limits.max_batch)
        self._batch = Batch(
            self.engine.cost,
            Limits(rows, limits.kv_tokens, limits.kv_token_bytes),
            loop.time(),
            self.slow * instance.slow,
        )
        cuts = [] if request.prefix is None else request.prefix.cuts
        try:
            await self._join(request.prompts, cuts, request.samples)
            async for frame in self._stream(ends_s):
                yield frame
        finally:
            self._closed = True
        for change in self._take_changes():  # whoever steers was told it would be taken
            for frame in self._released(change):
                yield frame
        counts, used = self._batch.counts, self._used
        left = [*self._batch.live_rows, *self._batch.waiting_rows]
        computed = counts.prefill_tokens
        admitted = sum(
            row.prompt.tokens + len(task.tokens)
            for row, task in zip(self._rows, self._tasks, strict=True)
            if row.admitted
        )
        yield Heartbeat(busy_s=loop.time() - began_s, load_s=loaded_s)
        yield RolloutDone(
            unfinished=sorted(row.index for row in left),
            generated_tokens=counts.tokens,
            prefill_computed=computed,
            prefill_loaded=used.loaded_tokens,
            prefill_reused=used.reused_tokens,
            prefill_saved=max(0, admitted - computed),
            prefill_s=counts.prefill_s,
            decode_s=counts.decode_s,
            iterations=counts.iterations,
            context_tokens=round(counts.context_tokens),
            kv_loads=used.loads,
            kv_load_s=used.load_s,
            kv_loaded_bytes=used.loaded_bytes,
            kv_publish_s=used.publish_s,
            kv_published_bytes=used.published_bytes,
            weights_pull_s=pull_s,
            weights_bytes=round(pulled_bytes),
            max_batch=rows,
            kv_capacity=limits.kv_tokens,
            kv_token_bytes=limits.kv_token_bytes,
        )

    async def _stream(self, ends_s: float) -> AsyncGenerator[AnyFrame]:
        loop = asyncio.get_running_loop()
        batch, instance = self._batch, self.instance
        progress_s = loop.time() + self.request.progress_s
        told_s = max(FLUSH_S, self.request.flush_s)
        tell_s = loop.time() + told_s if self.engine.tells else math.inf
        flush_s = told_s if self.engine.tells else max(told_s, FLUSH * self._expected_s())
        while batch.busy or batch.ended or self._changes:
            limit_s = min(progress_s, ends_s, tell_s)
            flush_at_s = loop.time() + flush_s
            while batch.at_s < limit_s and batch.stretch(limit_s):
                if batch.ended and batch.at_s >= flush_at_s:
                    break
            batch_ends = not batch.busy or batch.at_s >= limit_s or bool(batch.ended)
            await instance.sleep_until(batch.at_s if batch_ends else limit_s)
            now_s = loop.time()
            batch.rewind(now_s)
            if batch.at_s <= now_s:
                batch.settle()
            for frame in self._ended():
                yield frame
            for change in self._take_changes():
                for frame in self._released(change):
                    yield frame
                await self._join(change.prompts, change.cuts, change.samples)
            if instance.draining or now_s >= ends_s:
                yield self._tokens(batch.live_rows)
                if instance.draining:
                    yield Drain(reason="SIGTERM")
                return
            if now_s >= tell_s:
                tell_s = now_s + told_s
                if batch.live_rows:
                    yield self._tokens(batch.live_rows)
            if now_s >= progress_s:
                progress_s = now_s + self.request.progress_s
                if batch.live_rows:
                    yield self._tokens(batch.live_rows)
                yield Progress(
                    running=batch.running,
                    waiting=batch.waiting,
                    kv_tokens=batch.kv_tokens,
                    iterations=batch.counts.iterations,
                )

    def _take_changes(self) -> list[SteerRequest]:
        changes, self._changes = self._changes, []
        return changes

    async def _join(
        self,
        prompts: Sequence[list[int]],
        cuts: Sequence[list[int]],
        tasks: Sequence[SampleTask],
    ) -> None:
        """Prompts and samples come to the call; what is stored of the prompts is fetched first."""
        if not tasks:
            return
        cached = [0] * len(prompts)
        use = self.request.prefix
        if use is not None and any(cuts):
            cached = await self.engine.prefixes.fetch(
                self.instance, self._used, prompts, cuts, load=use.load
            )
        self._prompts += [
            PromptKv(len(tokens), known) for tokens, known in zip(prompts, cached, strict=True)
        ]
        self._keys += self.engine.responses.keys(prompts)
        if use is not None and use.publish:
            await self.engine.prefixes.publish(self.instance, self._used, prompts, cuts)
        step = self.request.call.step
        targets = self.engine.responses.lengths(step, self._keys, tasks)
        now_s = asyncio.get_running_loop().time()
        for task, target in zip(tasks, targets, strict=True):
            row = Row(
                index=len(self._rows),
                prompt=self._prompts[task.prompt],
                generated=len(task.tokens),
                target=target,
                sent=len(task.tokens),
                ready_s=now_s,
            )
            self._tasks.append(task)
            self._rows.append(row)
            self._batch.join(row)

    def _expected_s(self) -> float:
        """If all rows ran from now on to the longest's end."""
        rows = [*self._batch.live_rows, *self._batch.waiting_rows]
        longest = max((row.target - row.generated for row in rows), default=0)
        context = sum(row.prompt.tokens + row.generated for row in rows)
        return self.engine.cost.stretch_s(len(rows), context, longest)

    # --- frames -----------------------------------------------------------------------------------

    def _ended(self) -> Iterator[AnyFrame]:
        rows, self._batch.ended = self._batch.ended, []
        rows = [row for row in rows if not row.released]
        if not rows:
            return
        new = [row for row in rows if row.sent < row.generated]
        if new:
            yield self._tokens(new)
        yield Finished(
            samples=[row.index for row in rows],
            reasons=[
                "length" if row.target >= self._tasks[row.index].max_tokens else "stop"
                for row in rows
            ],
        )

    def _tokens(self, rows: Sequence[Row]) -> Tokens:
        samples: list[int] = []
        starts: list[int] = []
        counts: list[int] = []
        tokens: list[int] = []
        responses = self.engine.responses
        for row in rows:
            count = self._batch.generated(row) - row.sent
            if count <= 0:
                continue
            samples.append(row.index)
            starts.append(row.sent)
            counts.append(count)
            tokens += responses.tokens(self._tasks[row.index], row.sent, count)
            row.sent += count
        return Tokens(
            samples=samples,
            starts=starts,
            counts=counts,
            tokens=tokens,
            logprobs=bytes(4 * len(tokens)),
            version=self.request.model.version,
        )

    def _released(self, change: SteerRequest) -> Iterator[AnyFrame]:
        wanted = dict.fromkeys(change.release)
        left = {*self._batch.live_rows, *self._batch.waiting_rows}
        rows = [self._rows[i] for i in wanted if self._rows[i] in left]
        if not rows:
            return
        yield self._tokens(rows)
        for row in rows:
            self._batch.leave(row)
        yield Released(samples=[row.index for row in rows])
