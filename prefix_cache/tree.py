"""Which prompts share which prefixes: a radix tree over blocks of tokens.

Prompts are compared by blocks of ``block_tokens``; what is left of a prompt before its last token
is a last, shorter block. So prefixes branch at multiples of a block, identical prompts share all
but their last token, and prompts that differ in the last token only share as much. The last token
is in no node: it is always run, for its logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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


def build_tree(prompts: Sequence[Sequence[int]], block_tokens: int) -> PrefixTree:
    """Linear in the tokens."""
    if block_tokens < 1:
        raise ValueError(f"block_tokens must be at least 1, got {block_tokens}")
    # A trie of blocks first: by (trie node, block), 0 being the root.
    children: dict[tuple[int, bytes], int] = {}
    above, ends, branches, final = [-1], [0], [0], [False]
    stops: list[int] = []
    for tokens in prompts:
        data = np.asarray(tokens[:-1], dtype="<i8")
        at = 0
        for start in range(0, len(data), block_tokens):
            block = data[start : start + block_tokens]
            key = (at, block.tobytes())
            if key not in children:
                children[key] = len(ends)
                branches[at] += 1
                above.append(at)
                ends.append(start + len(block))
                branches.append(0)
                final.append(False)
            at = children[key]
        final[at] = True
        stops.append(at)
    # Then only what branches or ends a prompt is kept.
    number: dict[int, int] = {}
    kept_above = [-1] * len(ends)
    for at in range(1, len(ends)):
        parent = above[at]
        kept_above[at] = parent if parent in number else kept_above[parent]
        if branches[at] != 1 or final[at]:
            number[at] = len(number)
    below: list[list[int]] = [[] for _ in number]
    for prompt, at in enumerate(stops):
        while at > 0:
            below[number[at]].append(prompt)
            at = kept_above[at]
    nodes = tuple(
        Node(
            parent=number.get(kept_above[at], -1),
            start=max(0, ends[kept_above[at]]) if kept_above[at] > 0 else 0,
            end=ends[at],
            prompts=tuple(below[index]),
        )
        for at, index in number.items()
    )
    return PrefixTree(nodes, tuple(number.get(at, -1) for at in stops))
