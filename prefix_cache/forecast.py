"""What a choice of stored and shared prefixes comes to: cuts, prefill calls, tokens, seconds."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from prefix_cache.segments import NONE, Choice, Demand


@dataclass
class Call:
    """A prefill call: pairs of a prompt and where its segments end."""

    units: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    segments: set[int] = field(default_factory=set)
    tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Forecast:
    """Fields as in ``plan.PrefixPlan``; ``later_s`` is the part of ``seconds`` that samples which
    move later are expected to cost."""

    cuts: tuple[tuple[int, ...], ...]
    calls: tuple[Call, ...]
    publish: bool
    tokens_computed: int
    tokens_loaded: int
    stored_bytes: int
    seconds: float
    wall_s: float
    later_s: float


def forecast(demand: Demand, choice: Choice, stored: Collection[int]) -> Forecast:
    """Of storing the nodes ``stored``, which with a node hold every stored one above it. What is
    chosen, but not among them, is shared by an actor's prompts if that pays."""
    cuts = _Cuts(demand, choice, set(stored))
    calls = _calls(demand, cuts)
    own_s = [demand.costs.prefill_call_s if needed else 0.0 for needed in demand.actors]
    publish = any(len(demand.users[node]) == 1 for node in stored)
    computed = sum(call.tokens for call in calls)
    loaded, size, later_s = 0, 0, 0.0
    for node in cuts.above:
        users, tokens = demand.users[node], cuts.tokens(node)
        if node in cuts.stored and len(users) > 1:
            each = demand.load_s(tokens)
            loaded += len(users) * tokens
        else:
            each = demand.costs.prefill_call_s + demand.compute_s(tokens)
            computed += len(users) * tokens
            if publish:
                each += demand.publish_s(tokens)
            if stored:  # it is looked for before it is computed
                each += demand.costs.load_call_s
        if node in cuts.stored or publish:
            size += tokens * demand.costs.bytes_per_token
        later_s += demand.later(node) * (
            demand.load_s(tokens) if node in cuts.stored else demand.compute_s(tokens)
        )
        for actor in users:
            own_s[actor] += each
    for prompt, actors in enumerate(demand.actors_of):
        tail = demand.lengths[prompt] - demand.end(cuts.last[prompt])
        computed += len(actors) * tail
        for actor in actors:
            own_s[actor] += demand.compute_s(tail)
        if actors:
            later_s += demand.moved * demand.compute_s(tail)
    wait_s = max((call.seconds for call in calls), default=0.0)
    return Forecast(
        cuts=cuts.of_prompts(),
        calls=tuple(calls),
        publish=publish,
        tokens_computed=computed,
        tokens_loaded=loaded,
        stored_bytes=size,
        seconds=demand.num_actors * wait_s + sum(own_s) + later_s,
        wall_s=wait_s + max(own_s, default=0.0),
        later_s=later_s,
    )


class _Cuts:
    """The nodes that are cuts. ``above[node]``: the cut before it, parents first; ``last[p]``: the
    last cut of prompt p."""

    def __init__(self, demand: Demand, choice: Choice, stored: set[int]) -> None:
        self._demand = demand
        self.stored = stored
        self.above: dict[int, int] = {}
        nearest: dict[int, int] = {NONE: NONE}
        for index, node in enumerate(demand.tree.nodes):
            cut = nearest[node.parent]
            tokens = demand.end(index) - demand.end(cut)
            shared = index in choice.start and demand.sharing_gain(index, tokens) > 0
            if index in stored or shared:
                self.above[index] = cut
                cut = index
            nearest[index] = cut
        self.last = [nearest[node] for node in demand.tree.last]

    def tokens(self, node: int) -> int:
        return self._demand.end(node) - self._demand.end(self.above[node])

    def chain(self, node: int) -> tuple[int, ...]:
        """The cuts up to ``node``, as nodes."""
        chain: list[int] = []
        while node != NONE:
            chain.append(node)
            node = self.above[node]
        return tuple(reversed(chain))

    def of_prompts(self) -> tuple[tuple[int, ...], ...]:
        end = self._demand.end
        return tuple(
            tuple(map(end, self.chain(node))) if actors else ()
            for node, actors in zip(self.last, self._demand.actors_of, strict=True)
        )


def _calls(demand: Demand, cuts: _Cuts) -> list[Call]:
    """Deal what several actors load out to as many prefill calls as there are actors, longest
    first, each to the call that is done with it soonest. A call computes what its segments build
    on, too."""
    common = {node for node in cuts.stored if len(demand.users[node]) > 1}
    ends = common - {cuts.above[node] for node in common}
    chains = sorted(map(cuts.chain, ends), key=lambda c: (-demand.end(c[-1]), c[-1]))
    calls = [Call() for _ in range(demand.num_actors)]
    soonest = _Soonest(calls)
    holders: dict[int, _Soonest] = {}
    for chain in chains:
        # A call that has what the segment builds on, or the one with the least to do.
        candidates = [soonest.first()]
        if len(chain) > 1 and chain[-2] in holders:
            candidates.append(holders[chain[-2]].first())
        call = min(candidates, key=lambda call: call.seconds + _more_s(demand, cuts, call, chain))
        call.seconds += _more_s(demand, cuts, call, chain)
        for node in chain:
            if node not in call.segments:
                call.segments.add(node)
                call.tokens += cuts.tokens(node)
                holders.setdefault(node, _Soonest()).add(call)
        ends_at = tuple(map(demand.end, chain))
        call.units.append((demand.below[chain[-1]][0], ends_at))
    used = [call for call in calls if call.units]
    for call in used:
        call.seconds += demand.costs.prefill_call_s + demand.costs.request_s
    return used


class _Soonest:
    """Of some calls the one that is done soonest, the first of equals. Their seconds only grow."""

    def __init__(self, calls: Sequence[Call] = ()) -> None:
        self._heap: list[tuple[float, int, Call]] = []
        for call in calls:
            self.add(call)

    def add(self, call: Call) -> None:
        heapq.heappush(self._heap, (call.seconds, len(self._heap), call))

    def first(self) -> Call:
        while True:
            seconds, number, call = self._heap[0]
            if seconds == call.seconds:
                return call
            heapq.heapreplace(self._heap, (call.seconds, number, call))


def _more_s(demand: Demand, cuts: _Cuts, call: Call, chain: Sequence[int]) -> float:
    missing = [cuts.tokens(node) for node in chain if node not in call.segments]
    return sum(demand.compute_s(tokens) + demand.publish_s(tokens) for tokens in missing)
