"""Keys and values of a batch, aligned in time.

All rows write their next token into the same column, so a decode step writes one slice and needs
no index, and rows of equal age need no mask. A row is valid from its ``start`` column to the
common ``end``: a prompt is laid down right before ``end`` when its row arrives.

    keys[layer], values[layer]   [R, H, C, D]   R rows (capacity), H key-value heads, C columns

Invariant: columns [0, end) of rows below ``rows`` are finite, so a masked score never turns NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_SPARE_COLUMNS = 64


@dataclass(frozen=True)
class LayerShape:
    """Heads and sizes of one layer's keys and values."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int


class ColumnCache:
    def __init__(
        self, shapes: Sequence[LayerShape], max_rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._shapes = tuple(shapes)
        self._dtype = dtype
        self._device = device
        self._max_rows = max_rows
        self._capacity = -1  # no tensors yet
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.rows = 0
        self.end = 0
        self.low = 0
        """First column that any row uses."""
        self._starts = np.zeros(max_rows, dtype=np.int64)
        self._mask: Tensor | None = None
        self._mask_fresh = False

    @property
    def used_tokens(self) -> int:
        return int(self.end * self.rows - self._starts[: self.rows].sum())

    def start(self, row: int) -> int:
        return int(self._starts[row])

    def append(self, lengths: Sequence[int]) -> int:
        """Add rows of which the last ``lengths`` columns will be filled; the first one's number."""
        first, total = self.rows, self.rows + len(lengths)
        left = max(lengths)
        if total > self._max_rows:
            self._max_rows = max(total, 2 * self._max_rows)
            self._starts = np.resize(self._starts, self._max_rows)
            self._capacity = -1
        if self.rows == 0:
            self.end = self.low = left
        if self.end < left or self._capacity < self.end:
            self._rebuild(left)
        for keys, values in zip(self.keys, self.values, strict=True):
            keys[first:total, :, : self.end] = 0
            values[first:total, :, : self.end] = 0
        self._starts[first:total] = self.end - np.asarray(lengths)
        self.rows = total
        self._changed()
        return first

    def advance(self) -> int:
        """Open the next column of all rows and return it; the caller fills it."""
        if self.end == self._capacity:
            self._rebuild(0)
        self.end += 1
        return self.end - 1

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values in use, [rows, H, end - low, D], as views."""
        window = slice(self.low, self.end)
        return (
            self.keys[index][: self.rows, :, window],
            self.values[index][: self.rows, :, window],
        )

    def mask(self) -> Tensor | None:
        """Additive mask [rows, 1, 1, end - low]: -inf before a row's start; None if none is."""
        if not self._mask_fresh:
            self._mask = self._make_mask()
            self._mask_fresh = True
        return None if self._mask is None else self._mask[..., self.low : self.end]

    def drop(self, moves: Sequence[tuple[int, int]], remaining: int) -> None:
        """Keep ``remaining`` rows, after moving rows as ``decoder.compaction`` says."""
        for source, target in moves:
            window = slice(self.start(source), self.end)
            for tensor in (*self.keys, *self.values):
                tensor[target, :, window] = tensor[source, :, window]
            self._starts[target] = self._starts[source]
        self.rows = remaining
        self._changed()

    def _changed(self) -> None:
        self.low = int(self._starts[: self.rows].min()) if self.rows else self.end
        self._mask_fresh = False

    def _make_mask(self) -> Tensor | None:
        starts = self._starts[: self.rows]
        if self.rows == 0 or (starts == starts[0]).all():
            return None
        before = np.arange(self._capacity) < starts[:, None]
        mask = torch.zeros(before.shape, dtype=self._dtype)
        mask[torch.from_numpy(before)] = -torch.inf
        return mask[:, None, None, :].to(self._device)

    def _rebuild(self, left: int) -> None:
        """Move what is live into new tensors with ``left`` columns before ``end`` and spare ones
        behind it. Grows by half, so copying stays linear in the columns written."""
        live = self.end - self.low
        end = max(left, live)
        capacity = end + max(_SPARE_COLUMNS, end // 2)
        for index, shape in enumerate(self._shapes):
            for tensors, heads, dim in (
                (self.keys, shape.key_heads, shape.key_dim),
                (self.values, shape.value_heads, shape.value_dim),
            ):
                new = torch.empty(
                    (self._max_rows, heads, capacity, dim), dtype=self._dtype, device=self._device
                )
                new[: self.rows, :, : end - live] = 0
                if index == len(tensors):
                    tensors.append(new)
                    continue
                if live and self.rows:
                    old = tensors[index][: self.rows, :, self.low : self.end]
                    new[: self.rows, :, end - live : end] = old
                tensors[index] = new
        self._starts[: self.rows] += end - self.end
        self.low += end - self.end
        self.end = end
        self._capacity = capacity
        self._mask_fresh = False
