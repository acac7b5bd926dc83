"""The pretended model as a ``Decoder``: it takes the time of running a model instead of running
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.paced.model import PacedModel, prompt_name
from benchmarks.paced.pace import Clock, Pace
from benchmarks.paced.segments import Segments
from functions.rollout.decoder import NewRow, compaction
from functions.rollout.prefixes import Prefixes


@dataclass
class _Row:
    """``length`` of its response, 0 while that has no token; ``done`` tokens of it are there."""

    name: str
    prompt_tokens: int
    done: int
    length: int


class PacedDecoder:
    """A ``Decoder``; lives for one request. A prompt's keys and values are held once."""

    def __init__(
        self, model: PacedModel, pace: Pace, clock: Clock, prefixes: Prefixes | None
    ) -> None:
        self._model = model
        self._pace = pace
        self._clock = clock
        self._segments = Segments(pace, clock, prefixes)
        self._rows: list[_Row] = []
        self._held: dict[int, int] = {}  # prompt -> its tokens

    @property
    def prefill_tokens(self) -> int:
        return self._segments.tokens

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def kv_tokens(self) -> int:
        return sum(self._held.values()) + sum(row.done for row in self._rows)

    def admit(self, rows: Sequence[NewRow]) -> Tensor:
        new = {row.prompt: row for row in rows if row.prompt not in self._held}
        self._held |= {prompt: len(row.prompt_tokens) for prompt, row in new.items()}
        prompts = [(row.prompt_tokens, row.cuts) for row in new.values()]
        self._segments.run(prompts, sum(len(row.tokens) for row in rows))
        return torch.stack([self._admit(row) for row in rows])

    def _admit(self, new: NewRow) -> Tensor:
        row = _Row(prompt_name(new.prompt_tokens), len(new.prompt_tokens), len(new.tokens), 0)
        self._rows.append(row)
        if not new.tokens:
            return self._model.first
        row.length = self._length(row, new.tokens[0])
        return self._model.end if row.done == row.length - 1 else self._model.after(new.tokens[-1])

    def _length(self, row: _Row, first: int) -> int:
        return self._model.workload.length(row.name, self._model.version, first)

    def step(self, tokens: Tensor) -> Tensor:
        logits = self._model.after(tokens)
        context = 0
        for index, row in enumerate(self._rows):
            row.done += 1
            context += row.prompt_tokens + row.done
            if not row.length:
                row.length = self._length(row, int(tokens[index]))
            if row.done == row.length - 1:
                logits[index] = self._model.end
        pace = self._pace
        self._clock.work(pace.iteration_s + pace.row_s * len(self._rows) + pace.context_s * context)
        return logits

    def drop(self, rows: Sequence[int]) -> None:
        for source, target in compaction(len(self._rows), rows):
            self._rows[target] = self._rows[source]
        del self._rows[len(self._rows) - len(rows) :]

    def forget(self, prompt: int) -> None:
        self._held.pop(prompt, None)
