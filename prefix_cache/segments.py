"""Which prefixes to cut out of the prompts, and whether to store them: exact, node by node.

A node of the prefix tree is *stored* (computed once, loaded by the actors), *shared* (computed once
by each actor that needs it, for all its prompts) or no cut at all. A segment reaches from the last
cut above to the node's end. Costs add up over segments, so the best choice for a subtree depends on
what is above it only through the last cut and whether the chain up to it is stored: a table over
(node, last cut) finds the optimum.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from prefix_cache.tree import PrefixTree

NONE = -1
"""In place of a node: the root."""


@dataclass(frozen=True)
class PrefixCosts:
    """Seconds, as measured calls show them; ``bytes_per_token``: of one token's keys and values.

    ``prefill_call_s`` is what a pass through the model takes besides its tokens, ``load_call_s``
    what a load takes besides its bytes (or a look-up that finds nothing), ``publish_call_s`` what
    storing a segment takes besides its bytes, ``request_s`` what a prefill call takes besides its
    pass: HTTP, dispatch, waking up.
    """

    prefill_token_s: float
    prefill_call_s: float
    load_call_s: float
    load_byte_s: float
    publish_byte_s: float
    bytes_per_token: int
    publish_call_s: float = 0.0
    request_s: float = 5e-3


@dataclass(frozen=True)
class Choice:
    """Nodes, ascending. ``start[node]``: where a chosen node's segment begins."""

    stored: tuple[int, ...]
    shared: tuple[int, ...]
    start: dict[int, int]


NOTHING = Choice((), (), {})


class Demand:
    """Who needs which prefix, and what computing, storing and loading it takes."""

    def __init__(
        self,
        tree: PrefixTree,
        prompts: Sequence[Sequence[int]],
        actors: Sequence[Collection[int]],
        costs: PrefixCosts,
        moved: float,
    ) -> None:
        self.tree = tree
        self.costs = costs
        self.moved = moved
        self.lengths = [len(tokens) for tokens in prompts]
        self.actors = [sorted(set(needed)) for needed in actors]
        self.actors_of: list[list[int]] = [[] for _ in prompts]
        for actor, needed in enumerate(self.actors):
            for prompt in needed:
                self.actors_of[prompt].append(actor)
        # Prompts that nobody needs are left out of everything.
        self.below = [[p for p in node.prompts if self.actors_of[p]] for node in tree.nodes]
        self.users = [
            sorted({actor for p in below for actor in self.actors_of[p]}) for below in self.below
        ]
        """By node: the actors that need it."""

    @cached_property
    def num_actors(self) -> int:
        """Those that need any prompt."""
        return sum(1 for needed in self.actors if needed)

    @cached_property
    def most_actors(self) -> int:
        return max((len(users) for users in self.users), default=0)

    def weight(self, prompt: int) -> float:
        """How often the prompt is expected to be needed."""
        needed = len(self.actors_of[prompt])
        return needed + self.moved if needed else 0.0

    def end(self, node: int) -> int:
        return 0 if node == NONE else self.tree.nodes[node].end

    def later(self, node: int) -> float:
        """Loads of the node expected from samples that move."""
        return self.moved * len(self.below[node])

    def storable(self, node: int) -> bool:
        """Whether anybody could load it."""
        return len(self.users[node]) > 1 or self.later(node) > 0

    def load_s(self, tokens: int) -> float:
        costs = self.costs
        return costs.load_call_s + tokens * costs.bytes_per_token * costs.load_byte_s

    def publish_s(self, tokens: int) -> float:
        costs = self.costs
        return costs.publish_call_s + tokens * costs.bytes_per_token * costs.publish_byte_s

    def compute_s(self, tokens: int) -> float:
        return tokens * self.costs.prefill_token_s

    def store_cost(self, node: int, tokens: int) -> float:
        """Seconds over all actors of a segment of ``tokens`` that ends in ``node``, stored."""
        once = self.compute_s(tokens) + self.publish_s(tokens)
        users = len(self.users[node])
        # One alone computes and publishes it itself, in a pass of its own, having looked in vain.
        alone = self.costs.load_call_s + self.costs.prefill_call_s
        own = users * self.load_s(tokens) if users > 1 else alone
        return once + own + self.later(node) * self.load_s(tokens)

    def share_cost(self, node: int, tokens: int) -> float:
        """The same, computed once by each actor."""
        pass_s = self.costs.prefill_call_s
        by_actors = len(self.users[node]) * (pass_s + self.compute_s(tokens))
        return by_actors + self.later(node) * self.compute_s(tokens)

    def sharing_gain(self, node: int, tokens: int) -> float:
        """Seconds over all actors that computing the segment once on each saves."""
        needed = sum(len(self.actors_of[prompt]) for prompt in self.below[node])
        spared = needed - len(self.users[node])
        return self.compute_s(tokens) * spared - len(self.users[node]) * self.costs.prefill_call_s

    def segment_bytes(self, node: int, choice: Choice) -> int:
        return (self.end(node) - choice.start[node]) * self.costs.bytes_per_token

    def ends_in(self, node: int) -> list[int]:
        return [p for p in self.below[node] if self.tree.last[p] == node]


def choose(demand: Demand) -> Choice:
    """The cheapest choice, were there no bound on what is stored; ties go to the simpler one.

    Below a shared node nothing is stored: an actor that misses a segment looks no further.
    """
    nodes = demand.tree.nodes
    children: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        if node.parent != NONE:
            children[node.parent].append(index)
    tails = [
        (sum(map(demand.weight, ending)), sum(demand.weight(p) * demand.lengths[p] for p in ending))
        for ending in map(demand.ends_in, range(len(nodes)))
    ]
    # (node, last cut, may store) -> cost of the subtree and what to do with the node.
    table: dict[tuple[int, int, bool], tuple[float, str]] = {}

    def below(index: int, cut: int, may_store: bool) -> float:
        weight, tokens = tails[index]
        tail = demand.costs.prefill_token_s * (tokens - weight * demand.end(cut))
        return tail + sum(table[child, cut, may_store][0] for child in children[index])

    for index in reversed(range(len(nodes))):
        above = nodes[index].parent
        while True:
            length = demand.end(index) - demand.end(above)
            share = demand.share_cost(index, length) + below(index, index, False)
            for may_store in (True, False):
                options = [(below(index, above, may_store), "none"), (share, "share")]
                if may_store and demand.storable(index):
                    stored = demand.store_cost(index, length) + below(index, index, True)
                    options.append((stored, "store"))
                table[index, above, may_store] = min(options, key=lambda option: option[0])
            if above == NONE:
                break
            above = nodes[above].parent
    return _follow(demand, table)


def _follow(demand: Demand, table: dict[tuple[int, int, bool], tuple[float, str]]) -> Choice:
    stored: list[int] = []
    shared: list[int] = []
    start: dict[int, int] = {}
    state: dict[int, tuple[int, bool]] = {NONE: (NONE, True)}
    for index, node in enumerate(demand.tree.nodes):
        cut, may_store = state[node.parent]
        what = table[index, cut, may_store][1] if demand.below[index] else "none"
        if what != "none":
            (stored if what == "store" else shared).append(index)
            start[index] = demand.end(cut)
            cut, may_store = index, what == "store"
        state[index] = (cut, may_store)
    return Choice(tuple(stored), tuple(shared), start)


def store_orders(demand: Demand, choice: Choice) -> list[list[int]]:
    """Orders to store in when not everything fits: most valuable bytes first, and smallest first.
    A segment comes after those before it in its prompt."""
    parent: dict[int, int] = {}
    for prompt in range(len(demand.lengths)):
        path = [node for node in demand.tree.path(prompt) if node in choice.start]
        parent.update({child: node for node, child in pairwise(path)})
    value: dict[int, float] = {}
    for node in choice.stored:
        tokens = demand.end(node) - choice.start[node]
        recompute = demand.compute_s(tokens) * sum(map(demand.weight, demand.below[node]))
        value[node] = (recompute - demand.store_cost(node, tokens)) / max(1, tokens)
    size = {node: demand.segment_bytes(node, choice) for node in choice.stored}
    return [
        _parents_first(choice.stored, parent, lambda node: (-value[node], node)),
        _parents_first(choice.stored, parent, lambda node: (size[node], node)),
    ]


def _parents_first(
    nodes: Sequence[int], parent: dict[int, int], rank: Callable[[int], tuple[float, int]]
) -> list[int]:
    """``nodes`` by rank, lowest first, none before its parent."""
    members = set(nodes)
    waiting: dict[int, list[int]] = {}
    ready: list[tuple[tuple[float, int], int]] = []
    for node in nodes:
        above = parent.get(node, NONE)
        if above in members:
            waiting.setdefault(above, []).append(node)
        else:
            heapq.heappush(ready, (rank(node), node))
    order: list[int] = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for child in waiting.get(node, ()):
            heapq.heappush(ready, (rank(child), child))
    return order
