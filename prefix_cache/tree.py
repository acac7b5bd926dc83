"""Which prompts share which prefixes: a radix tree over blocks of tokens.

Prompts are compared by blocks of ``block_tokens``; what is left of a prompt before its last token
is a last, shorter block. So prefixes branch at multiples of a block, identical prompts share all
but their last token, and prompts that differ in the last token only share as much. The last token
is in no node: it is always run, for its logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Body: TypeAlias = NDArray[np.int64]
"""A prompt without its last token."""


@dataclass(frozen=True)
class Node:
    """Tokens ``[start, end)`` that all ``prompts`` (indices, ascending) have in common, after what
    their ``parent`` (index; -1 for none) has."""

    parent: int
    start: int
    end: int
    prompts: tuple[int, ...]


@dataclass(frozen=True)
class PrefixTree:
    """``nodes``: parents before children. ``last[p]``: the node prompt p ends in, -1 if it is too
    short to have one."""

    nodes: tuple[Node, ...]
    last: tuple[int, ...]

    def path(self, prompt: int) -> list[int]:
        """The prompt's nodes, from the root."""
        path: list[int] = []
        node = self.last[prompt]
        while node >= 0:
            path.append(node)
            node = self.nodes[node].parent
        return path[::-1]

    def cuts(self, prompt: int) -> list[int]:
        """Where its nodes end: branch points, then its length less one."""
        return [self.nodes[node].end for node in self.path(prompt)]


@dataclass
class _Edge:
    """A node while the tree grows: what leads to it are tokens ``[.., end)`` of ``tokens``;
    ``below`` by the block that follows."""

    tokens: Body
    end: int
    above: _Edge | None = None
    below: dict[bytes, _Edge] = field(default_factory=dict)
    prompts: list[int] = field(default_factory=list)


def build_tree(prompts: Sequence[Sequence[int]], block_tokens: int) -> PrefixTree:
    """Linear in the tokens; a prompt costs a few comparisons of arrays."""
    if block_tokens < 1:
        raise ValueError(f"block_tokens must be at least 1, got {block_tokens}")
    root = _Edge(np.zeros(0, np.int64), 0)
    edges: list[_Edge] = []
    stops = [
        _insert(root, np.array(tokens, np.int64)[:-1], block_tokens, edges) for tokens in prompts
    ]
    for prompt, stop in enumerate(stops):
        at: _Edge | None = stop
        while at is not None and at is not root:
            at.prompts.append(prompt)
            at = at.above
    # Parents before children: those a prompt was the first to pass, from the root on.
    edges.sort(key=lambda edge: (edge.prompts[0], edge.end))
    number = {id(root): -1} | {id(edge): index for index, edge in enumerate(edges)}
    nodes = []
    for edge in edges:
        assert edge.above is not None
        parent, start = number[id(edge.above)], edge.above.end
        nodes.append(Node(parent, start, edge.end, tuple(edge.prompts)))
    return PrefixTree(tuple(nodes), tuple(number[id(stop)] for stop in stops))


def _insert(root: _Edge, body: Body, block: int, edges: list[_Edge]) -> _Edge:
    """Where ``body`` ends in the tree; nodes that this needs are added, to ``edges`` as well."""
    at = root
    while at.end < len(body):
        key = body[at.end : at.end + block].tobytes()
        edge = at.below.get(key)
        if edge is None:
            edge = at.below[key] = _Edge(body, len(body), at)
            edges.append(edge)
            return edge
        common = _common(edge, body, at.end, block)
        if common < edge.end:
            # They part within the edge: a node where they do.
            parting = at.below[key] = _Edge(edge.tokens, common, at)
            parting.below[edge.tokens[common : common + block].tobytes()] = edge
            edge.above = parting
            edges.append(parting)
            edge = parting
        at = edge
    return at


def _common(edge: _Edge, body: Body, start: int, block: int) -> int:
    """Where the blocks that ``body`` and the edge have in common end; all before ``start`` are."""
    most = min(edge.end, len(body))
    differ = edge.tokens[start:most] != body[start:most]
    first = int(differ.argmax())
    same = start + first if differ[first] else most
    # What is left of a prompt after its last whole block is shared by the same prompt only.
    if same == edge.end and (same == len(body) or same % block == 0):
        return same
    return same - same % block
