"""Continuous batching on one instance, in stretches instead of iterations.

Rows wait in a queue, are admitted as rows and KV blocks allow, have what of their context is not
cached prefilled in chunks beside the rows that run, and then get a token in every iteration until
they end. Between two events (a row ends, a chunk is run, memory runs out) nothing changes but the
contexts, which grow by a token a row, so a stretch has a closed form: its cost does not depend on
how many iterations it has, nor on how many rows.

When memory runs out, prompts that no row needs are forgotten, then the row that was admitted last
goes back to the queue and is computed again later, as vLLM's scheduler does.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from simulator.platform.costs import Limits
from simulator.roofline import BLOCK_TOKENS, PREFILL_CHUNK, EngineCost

_ROUNDING = BLOCK_TOKENS // 2
"""Tokens of a row's last block that are free, on average."""


@dataclass(eq=False)
class PromptKv:
    """A prompt's keys and values on the instance. ``cached``: of its ``tokens``, those that need
    not be computed; ``rows``: how many rows there are of it, waiting ones left out."""

    tokens: int
    cached: int = 0
    resident: bool = False
    rows: int = 0


@dataclass(eq=False)
class Row:
    """A sample. ``generated`` tokens of ``target``, as of iteration ``since``; ``sent`` of them
    have been told. ``ready_s``: when it joined, loop seconds; ``admitted``: it was live once."""

    index: int
    prompt: PromptKv
    generated: int
    target: int
    sent: int
    ready_s: float
    since: int = 0
    live: bool = False
    admitted: bool = False
    released: bool = False


@dataclass
class Counts:
    """What was done, as ``RolloutDone`` tells it."""

    iterations: int = 0
    tokens: int = 0
    context_tokens: float = 0.0
    decode_s: float = 0.0
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    preempted: int = 0


@dataclass
class Batch:
    """``at_s``: seconds of the loop's clock up to which all is computed, an iteration's end.
    ``slow``: factor on all times (a straggler, noise)."""

    cost: EngineCost
    limits: Limits
    at_s: float
    slow: float = 1.0
    counts: Counts = field(default_factory=Counts)
    ended: list[Row] = field(default_factory=list)
    """Rows that have all their tokens and were not taken yet."""
    _waiting: deque[Row] = field(default_factory=deque)
    _live: dict[Row, None] = field(default_factory=dict)  # in the order of admission
    _ends: list[tuple[int, int, Row]] = field(default_factory=list)
    _iteration: int = 0
    _context: int = 0  # tokens that live rows attend to at the next iteration
    _kv: int = 0  # tokens of keys and values held
    _idle_prompts: dict[PromptKv, None] = field(default_factory=dict)
    _admissions: int = 0
    _mark: tuple[float, int, int, int, Counts] | None = None

    @property
    def running(self) -> int:
        return len(self._live)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_tokens(self) -> int:
        return self._kv

    @property
    def busy(self) -> bool:
        return bool(self._live or self._waiting)

    @property
    def live_rows(self) -> list[Row]:
        return list(self._live)

    @property
    def waiting_rows(self) -> list[Row]:
        return list(self._waiting)

    def generated(self, row: Row) -> int:
        return row.generated + (self._iteration - row.since if row.live else 0)

    def join(self, row: Row) -> None:
        if not self.busy:
            self.at_s = max(self.at_s, row.ready_s)
        if row.generated >= row.target:
            self.ended.append(row)
        else:
            self._waiting.append(row)

    def leave(self, row: Row) -> None:
        """Give up a row that has not ended."""
        if row.live:
            self._retire(row)
        else:
            self._waiting.remove(row)
        row.released = True

    # --- stretches --------------------------------------------------------------------------------

    def stretch(self, until_s: float) -> bool:
        """Compute on to the next event, or to the last iteration that ends by ``until_s``; False
        if that is now. What ends with it is settled by ``settle``, or by the next stretch."""
        self.settle()
        self._mark = None
        if not self.busy:
            return False
        admitted = self._admit()
        if admitted:
            self._run_chunk(admitted)
            return True
        if not self._live:
            self.at_s = max(self.at_s, self._waiting[0].ready_s)
            return self.at_s < until_s
        return self._decode(until_s)

    def settle(self) -> None:
        """Rows that have all their tokens end."""
        while self._ends and self._ends[0][0] <= self._iteration:
            end, _, row = heapq.heappop(self._ends)
            if _ends_at(row) == end:
                self._retire(row)
                self.ended.append(row)

    def rewind(self, to_s: float) -> None:
        """Something happens at ``to_s`` that the last stretch, not settled yet, did not know of:
        only its iterations up to then are kept. A chunk, once begun, is run to its end."""
        if self._mark is None or self.at_s <= to_s:
            return
        self.at_s, self._iteration, self._context, self._kv, self.counts = self._mark
        self._mark = None
        self._decode(to_s)

    def _decode(self, until_s: float) -> bool:
        rows = len(self._live)
        while _ends_at(self._ends[0][2]) != self._ends[0][0]:
            heapq.heappop(self._ends)  # of a row that left, or was admitted again
        count = self._ends[0][0] - self._iteration
        room = max(0, self.limits.kv_tokens - self._kv) // rows
        if room < count:
            if room:
                count = room
            elif self._make_room():
                return True
        seconds = self._seconds(count)
        if self.at_s + seconds > until_s:
            left_s = (until_s - self.at_s) / self.slow
            count = min(count, self.cost.iterations_in(rows, self._context, left_s))
            if count <= 0:
                return False
            seconds = self._seconds(count)
        self._mark = (self.at_s, self._iteration, self._context, self._kv, replace(self.counts))
        self._book(count)
        self.at_s += seconds
        self.counts.decode_s += seconds
        return True

    def _seconds(self, count: int) -> float:
        """Of so many iterations from now."""
        return self.slow * self.cost.stretch_s(len(self._live), self._context, count)

    def _book(self, count: int) -> None:
        """``count`` iterations of the live rows are over."""
        rows = len(self._live)
        self._iteration += count
        counts = self.counts
        counts.iterations += count
        counts.tokens += rows * count
        counts.context_tokens += count * (self._context + rows * (count - 1) / 2)
        self._context += rows * count
        self._kv += rows * count

    # --- admission --------------------------------------------------------------------------------

    def _admit(self) -> list[tuple[int, int]]:
        """Make rows live, for the next chunk: as many as rows, blocks and the chunk's size allow.
        For each (tokens to prefill, tokens of its context)."""
        chunk: list[tuple[int, int]] = []
        tokens = 0
        while self._waiting and tokens < PREFILL_CHUNK:
            row = self._waiting[0]
            if row.ready_s > self.at_s or not self._fits(row):
                break
            computed = self._take(self._waiting.popleft())
            chunk.append((computed, row.prompt.tokens + row.generated))
            tokens += computed
        return chunk

    def _fits(self, row: Row) -> bool:
        if len(self._live) >= self.limits.max_batch:
            return False
        if not self._live:
            return True  # alone, whatever it needs
        prompt = 0 if row.prompt.resident else row.prompt.tokens
        needs = prompt + row.generated + BLOCK_TOKENS
        while self._kv + needs > self.limits.kv_tokens and self._forget_prompt(but=row.prompt):
            pass
        return self._kv + needs <= self.limits.kv_tokens

    def _take(self, row: Row) -> int:
        """Make a row live; the tokens that have to be prefilled for it."""
        prompt = row.prompt
        computed = row.generated
        if not prompt.resident:
            computed += prompt.tokens - prompt.cached
            prompt.resident, prompt.cached = True, 0  # once forgotten, all of it is computed again
            self._kv += prompt.tokens
        self._idle_prompts.pop(prompt, None)
        prompt.rows += 1
        row.live, row.admitted, row.since = True, True, self._iteration
        self._live[row] = None
        self._admissions += 1
        heapq.heappush(self._ends, (_ends_at(row), self._admissions, row))
        self._kv += row.generated + _ROUNDING
        self._context += prompt.tokens + row.generated
        return computed

    def _run_chunk(self, chunk: Sequence[tuple[int, int]]) -> None:
        """An iteration that prefills ``chunk`` beside the rows that ran before; every row has a
        token more after it."""
        new = sum(tokens for tokens, _ in chunk)
        pairs = sum(tokens * (context - tokens / 2) for tokens, context in chunk)
        before = len(self._live) - len(chunk)
        attended = float(self._context - sum(context for _, context in chunk))
        seconds = 0.0
        if new:
            seconds = self.slow * self.cost.chunk_s(float(new), pairs, before, attended)
            alone = self.slow * self.cost.chunk_s(float(new), pairs)
            self.counts.prefill_s += min(alone, seconds)
            self.counts.decode_s += max(0.0, seconds - alone)
            self.counts.prefill_tokens += new
            self._book(1)
        self.at_s += seconds

    # --- memory -----------------------------------------------------------------------------------

    def _retire(self, row: Row) -> None:
        """A live row leaves, with all it has."""
        held = self.generated(row)
        del self._live[row]
        row.generated, row.live = held, False
        self._kv -= held + _ROUNDING
        self._context -= row.prompt.tokens + held
        row.prompt.rows -= 1
        if row.prompt.rows == 0:
            self._idle_prompts[row.prompt] = None

    def _make_room(self) -> bool:
        """Free memory for an iteration; False if a single row is all there is."""
        if self._forget_prompt():
            return True
        if len(self._live) == 1:
            return False
        last = next(reversed(self._live))
        self._retire(last)
        self._waiting.appendleft(last)
        self.counts.preempted += 1
        return True

    def _forget_prompt(self, but: PromptKv | None = None) -> bool:
        prompt = next((each for each in self._idle_prompts if each is not but), None)
        if prompt is None:
            return False
        del self._idle_prompts[prompt]
        prompt.resident = False
        self._kv -= prompt.tokens
        return True


def _ends_at(row: Row) -> int:
    """The iteration after which a live row has all its tokens; -1 if it is not live."""
    return row.since + row.target - row.generated if row.live else -1
