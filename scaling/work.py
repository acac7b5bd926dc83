"""Predicted seconds of actors that are given some samples.

An actor first prefills (or loads) the prompts of its samples, then decodes. With room for all its
samples the decode's features are in closed form: as many iterations as its longest sample has
tokens left, the sum of tokens, and for a sample of l further tokens on a context of p tokens
p·l + l²/2 tokens attended to. With more samples than rows (``Capacity``) they queue, and the
iterations are those of list scheduling in the order given. Worked number: two samples of 10 and 30
tokens, prompt 5: 30 iterations, 40 tokens, (50 + 50) + (150 + 450) = 700 context tokens.

Plans are judged many at a time, so that the work is that of arrays. Shapes: ``N`` samples of all
plans one after the other, ``A`` actors of all plans likewise, ``K`` pairs of an actor and a group
(or forecast) of which it has a sample.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scaling.arrays import DENSE, Bools, Floats, Ints, pairs, sums_by
from scaling.cost_model import CostModel
from scaling.forecast_table import NEVER
from scaling.items import Dealing, Items
from scaling.tails import Finish, longest


@dataclass(frozen=True)
class Capacity:
    """What one actor decodes together; 0 is no bound.

    ``max_batch`` rows; ``kv_tokens`` tokens of keys and values, of which a sample is charged
    ``row_tokens`` (0: its prompt and its predicted length) for as long as it runs.
    """

    max_batch: int = 0
    kv_tokens: int = 0
    row_tokens: int = 0


@dataclass(frozen=True)
class Prefixes:
    """How prompts get onto actors.

    ``dedup``: once for all samples of a prompt on an actor, else once for each sample. ``load_s``:
    group -> seconds to load its keys and values where another actor has computed them; groups that
    are missing are computed wherever they are needed. ``stored``: groups that nobody needs to
    compute, because the store has them. ``segments``: group -> its prompt as (segment, tokens);
    what prompts on an actor have in common has the same segment and is computed once.
    """

    dedup: bool = True
    load_s: Mapping[int, float] = field(default_factory=dict)
    stored: frozenset[int] = frozenset()
    segments: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Stack:
    """Plans one after the other: ``sample[N]`` and its ``actor[N]``, numbered over all plans;
    ``plan[A]`` and ``index[A]``: whose actor each is, and which of that plan's."""

    sample: Ints
    actor: Ints
    plan: Ints
    index: Ints

    @classmethod
    def of(cls, dealings: Sequence[Dealing]) -> Stack:
        numbers = np.array([dealing.num_actors for dealing in dealings])
        before = np.cumsum(numbers) - numbers
        actor = [d.owner + first for d, first in zip(dealings, before.tolist(), strict=True)]
        plan = np.repeat(np.arange(len(dealings)), numbers)
        return cls(
            sample=np.concatenate([dealing.order for dealing in dealings]),
            actor=np.concatenate(actor),
            plan=plan,
            index=np.arange(len(plan)) - before[plan],
        )

    def sums(self, values: Floats) -> Floats:
        """``[A]``: sums of ``values`` (by sample) over each actor's samples."""
        return sums_by(self.actor, values[self.sample], len(self.plan))


def finishes(
    items: Items, stack: Stack, cost: CostModel, capacity: Capacity, prefixes: Prefixes
) -> Finish:
    """When actors that are ready at once have generated their last tokens.

    The iterations are at least those of list scheduling with the lengths' means, and at least as
    many as the longest response has tokens: a distribution under the samples' forecasts.
    """
    iteration_s, token_s, context_s = cost.coefficients["decode"]
    rest_s = token_s * stack.sums(items.remaining) + context_s * stack.sums(items.context)
    rest_s += prefill_seconds(items, stack, cost, prefixes)
    floor = _floor(items, stack, capacity)
    actors = len(stack.plan)
    logs = np.zeros((actors, items.log_within.shape[1]))
    most = np.zeros(actors)
    if (items.forecast >= 0).any():
        unsure = items.forecast[stack.sample] >= 0
        actor, forecast, number = pairs(
            stack.actor[unsure], items.forecast[stack.sample[unsure]], len(items.most)
        )
        starts = np.flatnonzero(np.diff(actor, prepend=-1))
        most[actor[starts]] = np.maximum.reduceat(items.most[forecast], starts)
        # Nobody ends within the first points of the grid.
        begin = items.least_columns
        logs[actor[starts], :begin] = NEVER
        if actors * len(items.most) <= DENSE * len(actor):
            table = np.zeros((actors, len(items.most)))
            table[actor, forecast] = number
            logs[:, begin:] = table @ items.log_within[:, begin:]
        else:
            each = items.log_within[:, begin:][forecast] * number[:, None]
            logs[actor[starts], begin:] = np.add.reduceat(each, starts, axis=0)
    return Finish(rest_s, iteration_s, longest(logs, most, floor))


def prefill_seconds(items: Items, stack: Stack, cost: CostModel, prefixes: Prefixes) -> Floats:
    """``[A]``: seconds until the contexts of its samples are on an actor.

    The first actor of a plan that needs a prompt computes it; others load it where that is quicker.
    Tokens generated before are always computed.
    """
    call_s, token_s = cost.coefficients["prefill"]
    again = stack.sums(items.generated)
    if not prefixes.dedup:
        return call_s + token_s * (again + stack.sums(items.prompt_tokens))
    actors = len(stack.plan)
    actor, group, _ = pairs(stack.actor, items.group[stack.sample], len(items.groups))
    tokens = items.group_tokens[group]
    if prefixes.segments:
        tokens = tokens - _shared(items, prefixes, actor, group)
    labels = items.groups.tolist()
    load_s = np.array([prefixes.load_s.get(label, np.inf) for label in labels])[group]
    stored = np.array([label in prefixes.stored for label in labels])[group]
    elsewhere = stored | ~_first(stack.plan[actor] * len(labels) + group)
    loads = elsewhere & (load_s < token_s * tokens)
    computed = again + sums_by(actor, np.where(loads, 0.0, tokens), actors)
    loading = sums_by(actor, np.where(loads, load_s, 0.0), actors)
    return loading + np.where(computed > 0, call_s + token_s * computed, 0.0)


def _first(keys: Ints) -> Bools:
    """``[K]``: whether a key is the first of its kind."""
    first = np.zeros(len(keys), np.bool_)
    if keys.max(initial=0) <= DENSE * len(keys):
        place = np.empty(int(keys.max(initial=0)) + 1, np.int64)
        place[keys[::-1]] = np.arange(len(keys))[::-1]  # the last to be written is the first
        first[place[keys]] = True
    else:
        first[np.unique(keys, return_index=True)[1]] = True
    return first


def _shared(items: Items, prefixes: Prefixes, actor: Ints, group: Ints) -> Floats:
    """``[K]``: tokens of a group's prompt that are on the actor with a group before it."""
    paths = [prefixes.segments.get(label, ()) for label in items.groups.tolist()]
    lengths = np.array([len(path) for path in paths])
    sizes = np.array([size for path in paths for _, size in path], np.float64)
    if not len(sizes):
        return np.zeros(len(actor))
    _, segments = np.unique([segment for path in paths for segment, _ in path], return_inverse=True)
    # A row for each segment of each pair.
    pair = np.repeat(np.arange(len(actor)), lengths[group])
    within = np.arange(len(pair)) - (np.cumsum(lengths[group]) - lengths[group])[pair]
    entry = (np.cumsum(lengths) - lengths)[group][pair] + within
    first = _first(actor[pair] * (segments.max() + 1) + segments[entry])
    return sums_by(pair, np.where(first, 0.0, sizes[entry]), len(actor))


def _floor(items: Items, stack: Stack, capacity: Capacity) -> Floats:
    """``[A]``: iterations that an actor makes for certain, if lengths are as predicted."""
    actors = len(stack.plan)
    floor = np.ones(actors)
    begun = items.forecast[stack.sample] < 0
    if begun.any():
        np.maximum.at(floor, stack.actor[begun], items.remaining[stack.sample[begun]])
    rows, room = capacity.max_batch, capacity.kv_tokens
    count = np.bincount(stack.actor, minlength=actors)
    need = _held(items, capacity)
    crowded = (count > rows) if rows else np.zeros(actors, np.bool_)
    if room:
        crowded |= stack.sums(need) > room
    if crowded.any():
        # Whoever they are, so many rows fit.
        roomy = not room or bool(rows and np.sort(need)[-rows:].sum() <= room)
        rank = np.flatnonzero(crowded[stack.actor])
        rank = rank[np.argsort(stack.actor[rank], kind="stable")]
        ends = np.cumsum(count[crowded]).tolist()
        lengths, needs = items.remaining[stack.sample[rank]].tolist(), need[stack.sample[rank]]
        for actor, start, end in zip(
            np.flatnonzero(crowded).tolist(), [0, *ends], ends, strict=False
        ):
            if roomy:
                floor[actor] = _in_rows(lengths[start:end], rows)
            else:
                floor[actor] = _in_room(lengths[start:end], needs[start:end].tolist(), rows, room)
    return floor


def _in_rows(lengths: list[float], rows: int) -> float:
    """Iterations of list scheduling: the next in order enters when a row is free."""
    ends = sorted(lengths[:rows])
    for length in lengths[rows:]:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def _in_room(lengths: list[float], needs: list[float], rows: int, room: float) -> float:
    """The same where memory is short: the next enters as soon as it fits; one that fits nowhere
    runs alone."""
    rows = rows or len(lengths)
    running: list[tuple[float, float]] = []
    held = now = 0.0
    for length, need in zip(lengths, needs, strict=True):
        while running and (len(running) >= rows or held + need > room):
            now, freed = heapq.heappop(running)
            held -= freed
        heapq.heappush(running, (now + length, need))
        held += need
    return max(end for end, _ in running)


def _held(items: Items, capacity: Capacity) -> Floats:
    """``[N]``: keys and values that each sample is charged."""
    if capacity.row_tokens:
        return np.full(len(items), float(capacity.row_tokens))
    return items.prompt_tokens + items.generated + items.remaining
