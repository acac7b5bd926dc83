"""Which rows share which prompt, and the attention of all rows to the prompts they share.

N prompts held, B rows, g the most rows any prompt has, A query heads, K key-value heads, D head
size, P prompt columns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from functions.rollout.attention import attend_part


class Sharing:
    """Numbers of prompts and rows follow those of the caches that hold their keys and values."""

    def __init__(self) -> None:
        self._names: list[int] = []  # of prompts, by their row in the prompts' cache
        self._row_of: dict[int, int] = {}
        self._of_row: list[int] = []  # the prompt's name, by decode row
        self._index: tuple[Tensor, Tensor, int] | None = None

    def row_of(self, prompt: int) -> int:
        """The row of the prompts' cache that holds ``prompt``."""
        return self._row_of[prompt]

    def add_prompts(self, names: Sequence[int]) -> None:
        for name in names:
            self._row_of[name] = len(self._names)
            self._names.append(name)
        self._index = None

    def add(self, prompts: Sequence[int]) -> None:
        """Rows were appended, with these prompts."""
        self._of_row.extend(prompts)
        self._index = None

    def drop(self, moves: Sequence[tuple[int, int]], remaining: int) -> None:
        for source, target in moves:
            self._of_row[target] = self._of_row[source]
        del self._of_row[remaining:]
        self._index = None

    def drop_prompts(self, moves: Sequence[tuple[int, int]], remaining: int) -> None:
        for source, target in moves:
            self._names[target] = self._names[source]
        del self._names[remaining:]
        self._row_of = {name: row for row, name in enumerate(self._names)}
        self._index = None

    def unused(self, *, kept: Collection[int], read_by_rows: bool) -> list[int]:
        """Rows of the prompts' cache that nobody needs any more."""
        needed = set(kept)
        if read_by_rows:
            needed.update(self._of_row)
        return [row for row, name in enumerate(self._names) if name not in needed]

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Each row's attention to its prompt [B, A, D], and the logs of the denominators [B, A].

        ``query`` [B, A, D], ``keys`` and ``values`` [N, K, P, D], ``mask`` [N, 1, 1, P]. The rows
        of a prompt are queries of one product; prompts with fewer rows than g are padded with row
        0, whose results are not read.
        """
        heads, dim = query.shape[1:]
        prompts, kv_heads = keys.shape[:2]
        gather, scatter, most = self._indices(query.device)
        grouped = query.index_select(0, gather).view(prompts, most, kv_heads, -1, dim)
        flat = grouped.transpose(1, 2).reshape(prompts * kv_heads, -1, dim)
        if mask is not None:
            mask = mask.expand(-1, kv_heads, -1, -1).flatten(0, 1)
        out, log_sum = attend_part(flat, keys.flatten(0, 1), values.flatten(0, 1), mask, scale)
        shape = (prompts, kv_heads, most, heads // kv_heads)
        out = out.view(*shape, dim).transpose(1, 2).reshape(-1, heads, dim)
        log_sum = log_sum.view(shape).transpose(1, 2).reshape(-1, heads)
        return out.index_select(0, scatter), log_sum.index_select(0, scatter)

    def _indices(self, device: torch.device) -> tuple[Tensor, Tensor, int]:
        """Rows by prompt [N * g], the place of each row in that [B], and g."""
        if self._index is None:
            members: list[list[int]] = [[] for _ in self._names]
            for row, name in enumerate(self._of_row):
                members[self._row_of[name]].append(row)
            most = max(len(group) for group in members)
            gather = [row for group in members for row in (*group, *[0] * (most - len(group)))]
            scatter = [0] * len(self._of_row)
            for prompt, group in enumerate(members):
                for place, row in enumerate(group):
                    scatter[row] = prompt * most + place
            self._index = (
                torch.tensor(gather, device=device),
                torch.tensor(scatter, device=device),
                most,
            )
        return self._index
