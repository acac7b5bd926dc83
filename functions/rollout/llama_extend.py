"""Attention of new tokens to cached ones before them and to each other: prompts of which a part is
known.

N sequences, q the most new tokens any has, C the most tokens any has in all, T new tokens in all,
A query heads, K key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """The last ``count`` of a sequence's ``length`` cached tokens, which end before column
    ``end`` of ``row``; the pieces' queries lie back to back."""

    row: int
    length: int
    count: int
    end: int


class Extension:
    """Pieces that end in one column and run together, most new tokens first, padded on the left."""

    def __init__(self, pieces: Sequence[Piece], device: torch.device) -> None:
        most, longest = pieces[0].count, max(piece.length for piece in pieces)
        counts = torch.tensor([piece.count for piece in pieces], device=device).unsqueeze(1)
        lengths = torch.tensor([piece.length for piece in pieces], device=device).view(-1, 1, 1)
        self.tokens = sum(piece.count for piece in pieces)
        self._shape = (len(pieces), most)
        self._columns = slice(pieces[0].end - longest, pieces[0].end)
        self._rows = _rows([piece.row for piece in pieces], device)
        places = torch.arange(most, device=device) - (most - counts)
        self._real = (places >= 0).flatten()
        starts = counts.cumsum(0) - counts
        self._gather = torch.where(places >= 0, starts + places, 0).flatten()
        column = torch.arange(longest, device=device)
        own = torch.arange(longest - most, longest, device=device).unsqueeze(1)
        self._mask = (column >= longest - lengths) & (column <= own)  # [N, q, C]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """[T, A * D] from ``query`` [T, A, D]; ``keys`` and ``values`` [rows, K, columns, D] hold
        the new tokens' own already."""
        (count, most), (_, heads, dim) = self._shape, query.shape
        kv_heads = keys.shape[1]
        group = heads // kv_heads
        # The queries of a key-value head's group go one after the other: no key is repeated.
        padded = query.index_select(0, self._gather).view(count, most, kv_heads, group, dim)
        grouped = padded.permute(0, 2, 3, 1, 4).reshape(count, kv_heads, group * most, dim)
        attended = F.scaled_dot_product_attention(
            grouped,
            keys[self._rows][:, :, self._columns],
            values[self._rows][:, :, self._columns],
            attn_mask=self._mask.repeat(1, group, 1).unsqueeze(1),
            scale=scale,
        ).view(count, kv_heads, group, most, dim)
        return attended.permute(0, 3, 1, 2, 4).reshape(count * most, heads * dim)[self._real]


def extensions(pieces: Sequence[Piece], device: torch.device) -> list[Extension]:
    """``pieces`` in runs that end in the same column, none with less than half the new tokens of
    the run's first; sorted so that runs are long."""
    runs: list[list[Piece]] = []
    for piece in pieces:
        if runs and piece.end == runs[-1][0].end and 2 * piece.count >= runs[-1][0].count:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return [Extension(run, device) for run in runs]


def _rows(rows: list[int], device: torch.device) -> slice | Tensor:
    """Neighbours can be read where they are."""
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return torch.tensor(rows, device=device)
