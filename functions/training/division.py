"""Which samples of a minibatch each worker of a group computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from functions.packing import Indices, Sequences


def divide(sequences: Sequences, samples: Indices, size: int, *, packed: bool) -> list[Indices]:
    """``samples`` in ``size`` parts of about as many tokens; a part may be empty.

    Where ``packed``, the responses to a prompt share its computation, so a group is cut in as few
    pieces as keep the busiest worker's tokens fewest. Follows from the arguments alone.
    """
    if size == 1:
        return [samples]
    apart = [[i] for i in samples.tolist()]
    tried = [_pieces(sequences, samples, count) for count in (1, 2, 4, 8)] if packed else []
    parts = [_balanced(units, sequences, size) for units in [*tried, apart]]
    best = min(parts, key=lambda each: _busiest(sequences, each))  # the first of equals
    return [np.array(part, np.int64) for part in best]


def _pieces(sequences: Sequences, samples: Indices, count: int) -> list[list[int]]:
    """Each group in ``count`` pieces of about as many samples."""
    groups: dict[int, list[int]] = {}
    for i in samples.tolist():
        groups.setdefault(int(sequences.groups[i]), []).append(i)
    cut = [np.array_split(np.array(group), count) for group in groups.values()]
    return [piece.tolist() for pieces in cut for piece in pieces if len(piece)]


def _balanced(units: list[list[int]], sequences: Sequences, size: int) -> list[list[int]]:
    """The largest first, each to whoever has least to do (Graham's LPT)."""
    parts: list[list[int]] = [[] for _ in range(size)]
    loads = [0] * size
    for tokens, unit in sorted(((_tokens(sequences, u), u) for u in units), key=lambda x: -x[0]):
        least = loads.index(min(loads))
        parts[least] += unit
        loads[least] += tokens
    return parts


def _busiest(sequences: Sequences, parts: Sequence[Sequence[int]]) -> int:
    return max(_tokens(sequences, part) for part in parts)


def _tokens(sequences: Sequences, samples: Sequence[int]) -> int:
    """Of a forward pass in which a prompt's responses share it."""
    prompts = {int(sequences.groups[i]): len(sequences.prompts[i]) for i in samples}
    return sum(prompts.values()) + sum(len(sequences.responses[i]) for i in samples)
