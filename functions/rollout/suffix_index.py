"""Where the last tokens of a response have occurred before: in its own text, in its siblings', in
earlier responses.

Token sequences are kept in segments of one big array, the oldest of which are written over; what
the memory holds is fixed when the index is made. Hash tables, one for each length in ``ORDERS``,
lead from the last tokens of a context to places where the same tokens stood. What is found there is
compared with the context itself, so that neither a collision nor an entry that has been written
over is ever taken for a match. All work on a batch is done in numpy at once.

Legend: B rows, P positions, W ways, O orders, L = ``CONTEXT``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Integers = npt.NDArray[np.int64]

ORDERS = (48, 12, 4)
"""Lengths of context that are looked up. The longest tells prompts apart that end in the same
template; the shortest is the shortest match."""
SHORTEST = ORDERS[-1]
CONTEXT = 64
"""Tokens by which matches are compared; what lies before a sequence's beginning is ``NOTHING``."""
NOTHING = -1
SEGMENT = 512
"""Tokens of a segment, behind the ``CONTEXT`` tokens that precede them."""
WAYS = 4
"""Places kept for one context: of sequences that began one after another, siblings say."""
_STRIDE = CONTEXT + SEGMENT


@dataclass
class Document:
    """A sequence that is being written: its segment, and that segment's ``serial`` at the time."""

    segment: int = -1
    serial: int = -1


@dataclass(frozen=True)
class Matches:
    """For each row ``[B]``: where its context goes on (``position``), how many tokens stand there
    (``available``), and the tokens that match before it (``matched``; 0: there is no match)."""

    position: Integers
    available: Integers
    matched: Integers

    @property
    def segment(self) -> Integers:
        return self.position // _STRIDE


class SuffixIndex:
    """Half of ``memory_bytes`` holds tokens, half the tables. Memory that has not been written yet
    is not taken."""

    def __init__(self, memory_bytes: int) -> None:
        half = memory_bytes // 2
        self._num_segments = max(2, half // (4 * _STRIDE))
        slots = max(2, half // (4 * WAYS * len(ORDERS)))
        self._bits = slots.bit_length() - 1
        self._tokens: Tokens = np.zeros(self._num_segments * _STRIDE, np.int32)
        self._long = np.lib.stride_tricks.sliding_window_view(self._tokens, CONTEXT)
        self._short = np.lib.stride_tricks.sliding_window_view(self._tokens, SHORTEST)
        self._ends: Integers = np.zeros(self._num_segments, np.int64)
        self._serials: Integers = np.full(self._num_segments, -1, np.int64)
        self._table: Tokens = np.zeros((len(ORDERS), 1 << self._bits, WAYS), np.int32)
        self._num_opened = 0
        self._empty = np.full(CONTEXT, NOTHING, np.int32)
        random = np.random.default_rng(0)
        self._multipliers = random.integers(1, 1 << 62, CONTEXT, dtype=np.uint64) * 2 + 1

    @property
    def num_bytes(self) -> int:
        """Memory taken when everything has been written."""
        arrays = (self._tokens, self._ends, self._serials, self._table)
        return sum(array.nbytes for array in arrays)

    def append(self, documents: Sequence[Document], pieces: Sequence[Tokens]) -> None:
        """Documents grow by pieces ``[n]``; a new ``Document()`` begins one."""
        if documents:
            written = [
                part
                for document, piece in zip(documents, pieces, strict=True)
                for part in self._write(document, piece)
            ]
            if written:
                firsts, counts = np.array(written, np.int64).T
                begun = np.cumsum(counts) - counts
                self._enter(np.repeat(firsts - begun, counts) + np.arange(counts.sum()))

    def find(self, contexts: Tokens) -> Matches:
        """The longest match of each context ``[B, L]``, the newest of equals. Contexts end in the
        last token; those that begin earlier than their sequence hold ``NOTHING`` there."""
        candidates = np.concatenate(
            [
                self._table[order, self._keys(contexts, length)]
                for order, length in enumerate(ORDERS)
            ],
            axis=1,
        ).astype(np.int64)  # [B, O * W]
        segments = candidates // _STRIDE
        available = segments * _STRIDE + self._ends[segments] - candidates
        last = self._short[np.maximum(candidates - SHORTEST, 0)] == contexts[:, None, -SHORTEST:]
        good = np.nonzero((candidates > 0) & (available > 0) & last.all(-1))  # pairs, few
        same = self._windows(candidates[good]) == contexts[good[0]]
        matched = np.zeros(candidates.shape, np.int64)
        matched[good] = np.logical_and.accumulate(same[:, ::-1], axis=-1).sum(-1)
        score = matched * (self._num_opened + 1) + np.where(matched, self._serials[segments], 0)
        best = (np.arange(len(contexts)), score.argmax(axis=1))
        found = matched[best] > 0
        return Matches(
            position=np.where(found, candidates[best], 0),
            available=np.where(found, available[best], 0),
            matched=matched[best],
        )

    def read(self, position: int, count: int) -> list[int]:
        """Tokens that stand at a match's position; no more than are available."""
        tokens: list[int] = self._tokens[position : position + count].tolist()
        return tokens

    def _write(self, document: Document, piece: Tokens) -> Iterator[tuple[int, int]]:
        """Where the piece's tokens lie now: first positions and counts."""
        begin = 0
        while begin < len(piece):
            segment = document.segment
            if segment < 0 or self._serials[segment] != document.serial:
                self._open(document, self._empty)
            elif self._ends[segment] == _STRIDE:
                end = (segment + 1) * _STRIDE
                self._open(document, self._tokens[end - CONTEXT : end].copy())
            segment = document.segment
            end = int(self._ends[segment])
            count = min(_STRIDE - end, len(piece) - begin)
            first = segment * _STRIDE + end
            self._tokens[first : first + count] = piece[begin : begin + count]
            self._ends[segment] = end + count
            yield first, count
            begin += count

    def _open(self, document: Document, context: Tokens) -> None:
        segment = self._num_opened % self._num_segments
        document.segment, document.serial = segment, self._num_opened
        self._tokens[segment * _STRIDE : segment * _STRIDE + CONTEXT] = context
        self._ends[segment] = CONTEXT
        self._serials[segment] = self._num_opened
        self._num_opened += 1

    def _enter(self, positions: Integers) -> None:
        """Lead from what stands before each position to it."""
        windows = self._windows(positions)
        ways = self._serials[positions // _STRIDE] % WAYS
        for order, length in enumerate(ORDERS):
            self._table[order, self._keys(windows, length), ways] = positions

    def _windows(self, positions: Integers) -> Tokens:
        """What stands before positions ``[..., L]``; before 0, which is nowhere, something."""
        windows: Tokens = self._long[np.maximum(positions - CONTEXT, 0)]
        return windows

    def _keys(self, windows: Tokens, length: int) -> Integers:
        """Slots of the last ``length`` tokens."""
        last = windows[:, -length:].astype(np.uint64)
        hashed = (last * self._multipliers[:length]).sum(axis=1)
        keys: Integers = (hashed >> np.uint64(64 - self._bits)).astype(np.int64)
        return keys
