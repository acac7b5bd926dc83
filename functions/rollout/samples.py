"""The samples of one request: what each has drawn, what was sent, which decode row each is in.

Per-token values lie in flat arrays, each sample's stretch being its budget of new tokens, so an
iteration records the whole batch with one indexed write. Pages of a budget never used are never
touched.

B rows in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from functions.rollout.randomness import Uniforms
from rlhfless.messages import Finished, FinishReason, SampleTask, Tokens


class Samples:
    def __init__(self, tasks: Sequence[SampleTask], stop_tokens: Sequence[int], vocabulary: int):
        self._tasks = tasks
        self._begin = [len(task.tokens) for task in tasks]
        room = [
            max(0, task.max_tokens - begin) for task, begin in zip(tasks, self._begin, strict=True)
        ]
        offsets = np.concatenate(([0], np.cumsum(room, dtype=np.int64)))
        self._offset: NDArray[np.int64] = offsets[:-1]
        self._limit: NDArray[np.int64] = offsets[1:]
        size = int(offsets[-1])
        self._tokens = np.empty(size, dtype=np.int32)
        self._logprobs = np.empty(size, dtype=np.float32)
        self._uniforms = np.empty(size, dtype=np.float32)
        self._source = Uniforms()
        self._is_stop = np.zeros(vocabulary, dtype=np.bool_)
        self._is_stop[[token for token in stop_tokens if 0 <= token < vocabulary]] = True
        # Of the rows of the batch: the sample, its next flat index, the end of its stretch.
        self._sample = np.empty(0, dtype=np.int64)
        self._index = np.empty(0, dtype=np.int64)
        self._end = np.empty(0, dtype=np.int64)
        self._sent = self._offset.copy()
        self._ended: list[tuple[int, int, FinishReason]] = []  # sample, flat end, reason
        self.num_tokens = 0

    @property
    def num_rows(self) -> int:
        return len(self._sample)

    def samples_of(self, rows: Sequence[int]) -> list[int]:
        """Which sample each row is."""
        return [int(self._sample[row]) for row in rows]

    def add_rows(self, samples: Sequence[int]) -> None:
        """The samples enter the batch, as its last rows."""
        for sample in samples:
            first, last = int(self._offset[sample]), int(self._limit[sample])
            begin = self._begin[sample]
            self._uniforms[first:last] = self._source.row(
                self._tasks[sample].seed, begin, begin + last - first
            )
        new = np.asarray(samples, dtype=np.int64)
        self._sample = np.concatenate((self._sample, new))
        self._index = np.concatenate((self._index, self._offset[new]))
        self._end = np.concatenate((self._end, self._limit[new]))

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
