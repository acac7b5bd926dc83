"""Drafts for the rows of a running batch, from what has been generated so far.

Called by an engine once in an iteration, with the batch as it stands. It keeps track of the rows by
their tokens alone, since an engine's rows change places: two rows with the same tokens may well be
taken for one another, which makes no difference. What it guesses has no influence on what is
generated, only on how fast: the engine verifies every draft.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from functions.rollout.suffix_index import CONTEXT, NOTHING, Document, SuffixIndex, Tokens
from scaling.drafting import Acceptance, allot, free_tokens, match_class, of_rows

Integers = npt.NDArray[np.int64]

PRIOR_FREE_TOKENS = 64.0
"""Until iterations have been measured (``scaling.drafting``)."""
MEASURED = 128
"""Iterations that the measurement looks back on; it is made anew when as many have passed."""
ROW_KEPT = 0.9
"""Share of what is known of a row's drafts that is kept with each of them: its acceptance changes
as it grows."""
TAIL = 16
"""Tokens by which a row is known again."""


@dataclass(eq=False)
class _Row:
    """``length``: of prompt and response; ``tail``: its last tokens; ``drafted``: draft tokens it
    has been given for this iteration, of class ``kind``; ``tried`` and ``accepted`` add up what
    became of earlier ones."""

    document: Document
    length: int
    tail: bytes
    drafted: int = 0
    kind: int = 0
    tried: float = 0.0
    accepted: float = 0.0


class Drafter:
    """``most``: draft tokens of a row; ``free``: tokens that an iteration verifies for nothing, 0:
    to be measured with ``clock``."""

    def __init__(
        self,
        most: int,
        memory_bytes: int,
        free: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._most = most
        self._fixed = free > 0
        self._free = free or PRIOR_FREE_TOKENS
        self._clock = clock
        self._index = SuffixIndex(memory_bytes)
        self._rows: dict[int, _Row] = {}  # by where they lie
        self._acceptance = Acceptance()
        self._measured: deque[tuple[int, float]] = deque(maxlen=MEASURED)
        self._num_measured = 0
        self._left_s = 0.0

    def propose(
        self, sampled: Sequence[Sequence[int]], lengths: Integers, tokens: Tokens
    ) -> list[list[int]]:
        """Draft tokens of each row, given the tokens each has just gained (none: its prompt is
        still being run), its length with them, and all tokens ``[>= B, longest]``."""
        entered_s = self._clock()
        rows, steady = self._follow(sampled, lengths, tokens)
        if steady and rows and not self._fixed:
            self._measure(sum(1 + row.drafted for row in rows.values()), entered_s - self._left_s)
        self._judge(rows, sampled)
        self._index.append(
            [row.document for row in rows.values()],
            [tokens[i, row.length : lengths[i]] for i, row in rows.items()],
        )
        for i, row in rows.items():
            row.length, row.tail = int(lengths[i]), _tail(tokens[i], int(lengths[i]))
        drafts = self._draft(rows, tokens)
        self._rows = rows
        self._left_s = self._clock()
        return [drafts.get(i, []) for i in range(len(sampled))]

    def _follow(
        self, sampled: Sequence[Sequence[int]], lengths: Integers, tokens: Tokens
    ) -> tuple[dict[int, _Row], bool]:
        """The rows that have gained tokens, by where they lie now, as they were before, and whether
        the iteration ran these alone, no prompts."""
        known: dict[tuple[int, bytes], list[_Row]] = {}
        for row in self._rows.values():
            known.setdefault((row.length, row.tail), []).append(row)
        found: dict[int, _Row] = {}
        steady = True
        for i, new in enumerate(sampled):
            length = int(lengths[i]) - len(new)
            tail = _tail(tokens[i], length)
            same = known.get((length, tail), [])
            if not new:
                steady = False
            elif same:
                here = self._rows.get(i)
                found[i] = same.pop(next((j for j, row in enumerate(same) if row is here), 0))
            else:
                steady = False
                found[i] = _Row(Document(), length, tail)
                self._index.append([found[i].document], [tokens[i, :length]])
        return found, steady

    def _measure(self, verified: int, seconds: float) -> None:
        self._measured.append((verified, seconds))
        self._num_measured += 1
        if self._num_measured % MEASURED == 0:
            self._free = free_tokens(self._measured, PRIOR_FREE_TOKENS)

    def _judge(self, rows: dict[int, _Row], sampled: Sequence[Sequence[int]]) -> None:
        """Learn from what became of the drafts."""
        kinds, tried, accepted = [], [], []
        for i, row in rows.items():
            if row.drafted:
                taken = min(len(sampled[i]) - 1, row.drafted)
                decided = min(taken + 1, row.drafted)
                row.accepted = ROW_KEPT * row.accepted + taken
                row.tried = ROW_KEPT * row.tried + decided
                kinds.append(row.kind)
                tried.append(decided)
                accepted.append(taken)
        self._acceptance = self._acceptance.seen(
            np.array(kinds, np.int64), np.array(tried, np.int64), np.array(accepted, np.int64)
        )

    def _draft(self, rows: dict[int, _Row], tokens: Tokens) -> dict[int, list[int]]:
        if not rows:
            return {}
        found = list(rows.values())
        matches = self._index.find(_contexts(rows, tokens))
        # What a row repeats of its own it may repeat again: its text goes on where it ends.
        own = matches.segment == np.array([row.document.segment for row in found])
        available = np.where((matches.matched > 0) & own, self._most, matches.available)
        room = tokens.shape[1] - 1 - np.array([row.length for row in found])
        kinds = match_class(matches.matched)
        acceptance = of_rows(
            self._acceptance.rates()[kinds],
            np.array([row.tried for row in found]),
            np.array([row.accepted for row in found]),
        )
        counts = allot(acceptance, np.minimum(available, room), self._most, self._free)
        drafts: dict[int, list[int]] = {}
        for j, (i, row) in enumerate(rows.items()):
            row.drafted, row.kind = int(counts[j]), int(kinds[j])
            if row.drafted:
                standing = min(row.drafted, int(matches.available[j]))
                there = self._index.read(int(matches.position[j]), standing)
                drafts[i] = [there[k % standing] for k in range(row.drafted)]
        return drafts


def _tail(tokens: Tokens, length: int) -> bytes:
    return tokens[max(0, length - TAIL) : length].tobytes()


def _contexts(rows: dict[int, _Row], tokens: Tokens) -> Tokens:
    """The rows' last tokens ``[B, L]``."""
    columns = np.array([row.length for row in rows.values()])[:, None] + np.arange(-CONTEXT, 0)
    lie = np.array(list(rows))[:, None]
    return np.where(columns >= 0, tokens[lie, np.maximum(columns, 0)], np.int32(NOTHING))
