"""Predicted seconds of an actor that is given some samples.

An actor first prefills (or loads) the prompts of its samples, then decodes. With room for all its
samples the decode's features are in closed form: as many iterations as its longest sample has
tokens left, the sum of tokens, and for a sample of l further tokens on a context of p tokens
p·l + l²/2 tokens attended to. With more samples than rows (``Capacity``) they queue, and the
iterations are those of list scheduling in the order given. Worked number: two samples of 10 and 30
tokens, prompt 5: 30 iterations, 40 tokens, (50 + 50) + (150 + 450) = 700 context tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from scaling.assignment import Item
from scaling.cost_model import CostModel
from scaling.forecasts import Forecast
from scaling.tails import Finish, Longest, longest


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


def decode_finish(items: Sequence[Item], cost: CostModel, capacity: Capacity) -> Finish:
    """When decoding ``items`` (in this order of admission) is done.

    The iterations are at least those of list scheduling with the lengths' means, and at least as
    many as the longest response has tokens: a distribution under the items' forecasts.
    """
    tokens = sum(item.remaining for item in items)
    context = sum(
        (item.prompt_tokens + item.generated) * item.remaining + item.remaining**2 / 2
        for item in items
    )
    return Finish(
        rest_s=cost.decode_s(0, tokens, context),
        token_s=cost.decode_s(1, 0, 0),
        longest=_longest(items, capacity),
    )


def prefill_seconds(
    items: Sequence[Item], cost: CostModel, prefixes: Prefixes, first: bool | frozenset[int] = True
) -> float:
    """Seconds until the contexts of ``items`` are on the actor.

    ``first``: the groups whose prompt this actor is the first to need (True: all); it computes
    those, and loads others where that is quicker. Tokens generated before are always computed.
    """
    again = sum(item.generated for item in items)
    if not prefixes.dedup:
        return cost.prefill_s(again + sum(item.prompt_tokens for item in items))
    computed, loading = again, 0.0
    there: set[int] = set()
    for group, tokens in {item.group: item.prompt_tokens for item in items}.items():
        segments = prefixes.segments.get(group, ())
        tokens -= sum(size for segment, size in segments if segment in there)
        there.update(segment for segment, _ in segments)
        elsewhere = group in prefixes.stored or not (first is True or (first and group in first))
        load_s = prefixes.load_s.get(group)
        if elsewhere and load_s is not None and load_s < cost.prefill_s(tokens, calls=0):
            loading += load_s
        else:
            computed += tokens
    return loading + (cost.prefill_s(computed) if computed else 0.0)


def actor_finish(
    items: Sequence[Item],
    cost: CostModel,
    capacity: Capacity = Capacity(),
    prefixes: Prefixes = Prefixes(),
    first: bool | frozenset[int] = True,
    start_s: float = 0.0,
) -> Finish:
    """When an actor that is ready after ``start_s`` has generated its last token."""
    decode = decode_finish(items, cost, capacity)
    before = start_s + prefill_seconds(items, cost, prefixes, first)
    return replace(decode, rest_s=decode.rest_s + before)


def actor_seconds(
    items: Sequence[Item],
    cost: CostModel,
    capacity: Capacity = Capacity(),
    prefixes: Prefixes = Prefixes(),
) -> float:
    """Expected seconds from the call's start to its last token."""
    return actor_finish(items, cost, capacity, prefixes).mean()


def _longest(items: Sequence[Item], capacity: Capacity) -> Longest:
    if _crowded(items, capacity):
        floor = _listed(items, capacity)
    else:
        floor = max((item.remaining for item in items if not _fresh(item)), default=1.0)
    # Samples of a group share their forecast: told apart by identity, since hashing one is slow.
    alike: dict[int, tuple[Forecast, int]] = {}
    for item in items:
        if item.forecast is not None and item.generated == 0:
            forecast, number = alike.get(id(item.forecast), (item.forecast, 0))
            alike[id(forecast)] = (forecast, number + 1)
    return longest(list(alike.values()), floor)


def _fresh(item: Item) -> bool:
    """Whether its length is a guess about a response not begun."""
    return item.forecast is not None and item.generated == 0


def _crowded(items: Sequence[Item], capacity: Capacity) -> bool:
    """Whether some samples have to wait for others."""
    if capacity.max_batch and len(items) > capacity.max_batch:
        return True
    return capacity.kv_tokens > 0 and (
        sum(_held(item, capacity) for item in items) > capacity.kv_tokens
    )


def _listed(items: Sequence[Item], capacity: Capacity) -> float:
    """Iterations of list scheduling: the next in order enters as soon as it fits; one that fits
    nowhere runs alone."""
    rows = capacity.max_batch or len(items)
    room = float(capacity.kv_tokens or "inf")
    running: list[tuple[float, float]] = []
    held = now = 0.0
    for item in items:
        need = _held(item, capacity)
        while running and (len(running) >= rows or held + need > room):
            now, freed = heapq.heappop(running)
            held -= freed
        heapq.heappush(running, (now + item.remaining, need))
        held += need
    return max(end for end, _ in running)


def _held(item: Item, capacity: Capacity) -> float:
    return float(capacity.row_tokens or item.prompt_tokens + item.generated + item.remaining)
