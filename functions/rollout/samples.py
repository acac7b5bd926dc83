"""The samples of one call: what each has drawn, what was sent, which decode row each is in.

Per-token values lie in flat arrays, each sample's stretch being its budget of new tokens, so an
iteration records the whole batch with one indexed write. Pages of a budget never used are never
touched.

B rows in the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from functions.rollout.randomness import Uniforms
from functions.rollout.roster import Roster
from rlhfless.messages import Finished, FinishReason, Tokens

_EMPTY: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class Samples:
    """Grows with its roster (``join``)."""

    def __init__(self, roster: Roster, stop_tokens: Sequence[int], vocabulary: int):
        self._roster = roster
        self._begin: list[int] = []  # response position of each stretch
        self._before: NDArray[np.int64] = _EMPTY  # context of a row, less its flat index
        self._offset: NDArray[np.int64] = _EMPTY
        self._limit: NDArray[np.int64] = _EMPTY
        self._tokens = np.empty(0, dtype=np.int32)
        self._logprobs = np.empty(0, dtype=np.float32)
        self._uniforms = np.empty(0, dtype=np.float32)
        self._source = Uniforms()
        self._is_stop = np.zeros(vocabulary, dtype=np.bool_)
        self._is_stop[[token for token in stop_tokens if 0 <= token < vocabulary]] = True
        # Of the rows of the batch: the sample, its next flat index, the end of its stretch.
        self._sample: NDArray[np.int64] = _EMPTY
        self._index: NDArray[np.int64] = _EMPTY
        self._end: NDArray[np.int64] = _EMPTY
        self._sent: NDArray[np.int64] = _EMPTY
        self._ended: list[tuple[int, int, FinishReason]] = []  # sample, flat end, reason
        self.num_tokens = 0
        self.context_tokens = 0
        """Tokens that the rows hold together, prompts included."""

    def join(self) -> None:
        """Make room for what the roster has gained. Only when all is sent: what was drawn before
        is not kept."""
        new = self._roster.samples[len(self._begin) :]
        if not new:
            return
        room = [max(0, task.max_tokens - len(task.tokens)) for task in new]
        begin = [len(task.tokens) for task in new]
        prompts = [len(self._roster.prompts[task.prompt]) for task in new]
        ends = len(self._uniforms) + np.cumsum(room, dtype=np.int64)
        offsets = ends - np.asarray(room, dtype=np.int64)
        self._begin += begin
        self._before = np.append(self._before, np.asarray(prompts) + begin - offsets)
        self._offset = np.append(self._offset, offsets)
        self._limit = np.append(self._limit, ends)
        self._sent = np.append(self._sent, offsets)
        size = len(self._uniforms) + sum(room)
        self._tokens = np.empty(size, dtype=np.int32)
        self._logprobs = np.empty(size, dtype=np.float32)
        kept, self._uniforms = self._uniforms, np.empty(size, dtype=np.float32)
        for first, last in zip(self._index.tolist(), self._end.tolist(), strict=True):
            self._uniforms[first:last] = kept[first:last]

    @property
    def num_rows(self) -> int:
        return len(self._sample)

    def rows_of(self, samples: Collection[int]) -> list[int]:
        """The rows of those of ``samples`` that are in the batch, ascending."""
        rows: list[int] = np.flatnonzero(np.isin(self._sample, list(samples))).tolist()
        return rows

    def samples_of(self, rows: Sequence[int]) -> list[int]:
        """Which sample each row is."""
        return [int(self._sample[row]) for row in rows]

    def add_rows(self, samples: Sequence[int]) -> None:
        """The samples enter the batch, as its last rows."""
        for sample in samples:
            first, last = int(self._offset[sample]), int(self._limit[sample])
            begin = self._begin[sample]
            self._uniforms[first:last] = self._source.row(
                self._roster.samples[sample].seed, begin, begin + last - first
            )
        new = np.asarray(samples, dtype=np.int64)
        self._sample = np.concatenate((self._sample, new))
        self._index = np.concatenate((self._index, self._offset[new]))
        self._end = np.concatenate((self._end, self._limit[new]))
        self._count_context()

    def variates(self, first: int = 0) -> NDArray[np.float32]:
        """What decides the next token of rows ``first ..`` [B - first]."""
        variates: NDArray[np.float32] = self._uniforms[self._index[first:]]
        return variates

    def record(
        self, tokens: NDArray[np.int64], logprobs: NDArray[np.float32], first: int = 0
    ) -> list[int]:
        """Take the next token of rows ``first ..``; the rows that ended by it, ascending."""
        index = self._index[first:]
        self._tokens[index] = tokens
        self._logprobs[index] = logprobs
        index += 1
        self.num_tokens += len(tokens)
        self.context_tokens += len(tokens)
        stopped = self._is_stop[tokens]
        done = stopped | (index == self._end[first:])
        if not done.any():
            return []
        rows = np.flatnonzero(done)
        for row in rows.tolist():
            reason: FinishReason = "stop" if stopped[row] else "length"
            self._ended.append((int(self._sample[first + row]), int(index[row]), reason))
        return [first + row for row in rows.tolist()]

    def drop_rows(self, moves: Sequence[tuple[int, int]], remaining: int) -> None:
        """Rows leave the batch; ``moves`` as ``decoder.compaction`` says."""
        for array in (self._sample, self._index, self._end):
            for source, target in moves:
                array[target] = array[source]
        self._sample = self._sample[:remaining]
        self._index = self._index[:remaining]
        self._end = self._end[:remaining]
        self._count_context()

    def _count_context(self) -> None:
        self.context_tokens = int(self._index.sum() + self._before[self._sample].sum())

    def unsent(self, version: int) -> Iterator[Tokens | Finished]:
        """Frames of all that was drawn since the last time."""
        positions = [(sample, end) for sample, end, _ in self._ended]
        positions += zip(self._sample.tolist(), self._index.tolist(), strict=True)
        fresh = [(sample, end) for sample, end in positions if end > self._sent[sample]]
        if fresh:
            yield self._tokens_frame(fresh, version)
        if self._ended:
            yield Finished(
                samples=[sample for sample, _, _ in self._ended],
                reasons=[reason for _, _, reason in self._ended],
            )
            self._ended = []

    def _tokens_frame(self, fresh: Sequence[tuple[int, int]], version: int) -> Tokens:
        spans = [(sample, int(self._sent[sample]), end) for sample, end in fresh]
        tokens = np.concatenate([self._tokens[start:end] for _, start, end in spans])
        logprobs = np.concatenate([self._logprobs[start:end] for _, start, end in spans])
        for sample, end in fresh:
            self._sent[sample] = end
        return Tokens(
            samples=[sample for sample, _ in fresh],
            starts=[
                self._begin[sample] + start - int(self._offset[sample])
                for sample, start, _ in spans
            ],
            counts=[end - start for _, start, end in spans],
            tokens=tokens.tolist(),
            logprobs=logprobs.astype("<f4", copy=False).tobytes(),
            version=version,
        )
