"""What of a step's prompts is computed once and loaded, and what every actor computes itself.

``plan_prefixes`` is pure; the controller calls it once the samples are assigned. A prefix that
several actors need is stored by prefill calls, which run side by side on the actors' instances
before the rollout begins; then each actor loads what it needs and computes the rest. Short prefixes
are not worth it: below ``break_even_tokens`` an actor computes faster than it loads.

What is minimised is the instances' time until all prompts are ready, ``seconds``: while prefill
calls run, every actor waits for the longest of them. No plan is ever worse than plain recompute in
that, nor in ``wall_s`` but for what is stored in case samples move. More room in the store never
makes a plan worse, because the choices it is picked from do not depend on the room.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from prefix_cache.forecast import Forecast, forecast
from prefix_cache.segments import NOTHING, Demand, PrefixCosts, choose, store_orders
from prefix_cache.tree import PrefixTree, build_tree

_STEPS, _FEWEST_STEPS = 32, 8
"""Choices between storing nothing and storing all that pays, evenly spaced in bytes: the most, and
those that there are however much is planned. A choice costs in proportion to the pairs of a prefix
and an actor that needs it; over random instances with little room eight came within 1 % of 32."""
_ALL_STEPS_PAIRS = 256
"""Pairs up to which all choices are weighed; of more in inverse proportion fewer."""


@dataclass(frozen=True)
class PrefillCall:
    """One prefill call: indices of prompts, and where each one's segments end."""

    prompts: tuple[int, ...]
    cuts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Alternative:
    """What a way to get the prompts' keys and values ready would take; as in ``PrefixPlan``."""

    name: str
    seconds: float
    wall_s: float
    tokens_computed: int
    tokens_loaded: int
    stored_bytes: int


@dataclass(frozen=True)
class PrefixPlan:
    """``cuts[p]``, ``load`` and ``publish`` go into the rollout calls (``messages.PrefixUse``).

    ``prefill`` are the calls to make before them, side by side; they publish. Tokens are prompt
    tokens over all instances; ``tokens_saved`` is against every actor computing each of its prompts
    once. ``seconds`` sums, over the actors, the time until its prompts are ready, and what samples
    that move later are expected to cost; ``wall_s`` is the longest actor's.
    """

    cuts: tuple[tuple[int, ...], ...]
    prefill: tuple[PrefillCall, ...]
    load: bool
    publish: bool
    tokens_computed: int
    tokens_loaded: int
    tokens_saved: int
    stored_bytes: int
    seconds: float
    wall_s: float
    reason: str
    alternatives: tuple[Alternative, ...]


def plan_prefixes(
    prompts: Sequence[Sequence[int]],
    actors: Sequence[Collection[int]],
    costs: PrefixCosts,
    *,
    block_tokens: int,
    max_bytes: int,
    moved: float = 0.0,
    tree: PrefixTree | None = None,
) -> PrefixPlan:
    """``actors[a]``: indices of the prompts that actor a needs. ``max_bytes`` bounds what is stored
    for the step. ``moved``: how many further actors, on average, will come to need a prompt because
    samples move; above 0 it can pay that actors publish what only they need now. ``tree``: of the
    prompts, if there is one already.
    """
    tree = tree or build_tree(prompts, block_tokens)
    demand = Demand(tree, prompts, actors, costs, moved)
    choice = choose(demand)
    plain = forecast(demand, NOTHING, ())
    candidates = [plain, forecast(demand, choice, ())]
    pairs = sum(map(len, demand.users))
    steps = max(_FEWEST_STEPS, min(_STEPS, _STEPS * _ALL_STEPS_PAIRS // max(1, pairs)))
    for order in store_orders(demand, choice):
        sizes = _sizes([demand.segment_bytes(node, choice) for node in order], steps)
        candidates += [forecast(demand, choice, order[:count]) for count in sizes]
    allowed = [
        found
        for found in candidates
        if found.stored_bytes <= max_bytes and _no_worse(found, plain, demand.num_actors)
    ]
    best = min(allowed, key=lambda found: found.seconds)
    alternatives = _alternatives(plain, candidates[1], candidates[2:], best)
    return PrefixPlan(
        cuts=best.cuts,
        prefill=tuple(
            PrefillCall(tuple(p for p, _ in call.units), tuple(cuts for _, cuts in call.units))
            for call in best.calls
        ),
        load=bool(best.stored_bytes),
        publish=best.publish,
        tokens_computed=best.tokens_computed,
        tokens_loaded=best.tokens_loaded,
        tokens_saved=plain.tokens_computed - best.tokens_computed,
        stored_bytes=best.stored_bytes,
        seconds=best.seconds,
        wall_s=best.wall_s,
        reason=_reason(demand, best, plain, max_bytes, alternatives),
        alternatives=alternatives,
    )


def break_even_tokens(costs: PrefixCosts, actors: int) -> float:
    """Length from which storing a prefix once and loading it on ``actors`` actors takes less of
    their time than computing it on each; infinite if it never does.

    Prefill calls share the computing evenly, so L tokens take ``L * prefill_token_s`` in all, to
    publish them ``publish_call_s + L * bytes_per_token * publish_byte_s``, and each load
    ``load_call_s + L * bytes_per_token * load_byte_s``; computing takes ``actors * L *
    prefill_token_s``. What the prefill calls themselves take, all prefixes share; it is left out.
    Worked number: 1 ms a token, 1 ms a load, 10 us to move a token's bytes either way, 4 actors:
    4 ms / (3 ms - 50 us) = 1.4 tokens.
    """
    store = costs.bytes_per_token * (costs.publish_byte_s + actors * costs.load_byte_s)
    gain = (actors - 1) * costs.prefill_token_s - store
    fixed = costs.publish_call_s + actors * costs.load_call_s
    return fixed / gain if gain > 0 else math.inf


def _no_worse(found: Forecast, plain: Forecast, actors: int) -> bool:
    """Storing may delay the actors by what it saves them, on average, when samples move."""
    delay_s = found.wall_s - plain.wall_s
    saved_s = (plain.later_s - found.later_s) / max(1, actors)
    return found.seconds <= plain.seconds and delay_s <= max(0.0, saved_s)


def _sizes(sizes: Sequence[int], steps: int) -> list[int]:
    """How many of the first entries to take, for each of the choices."""
    total, cumulative, counts = sum(sizes), 0, []
    for count, size in enumerate(sizes, 1):
        before, cumulative = cumulative, cumulative + size
        last = count == len(sizes)
        if last or before * steps // max(1, total) < cumulative * steps // max(1, total):
            counts.append(count)
    return counts


def _alternatives(
    plain: Forecast, shared: Forecast, stored: Sequence[Forecast], best: Forecast
) -> tuple[Alternative, ...]:
    rows = {"every actor computes its prompts": plain}
    if shared.cuts != plain.cuts:
        rows["every actor computes what its prompts share once"] = shared
    if stored:
        rows["computed once and loaded, all that could pay"] = max(
            stored, key=lambda found: found.stored_bytes
        )
    if best not in rows.values():
        rows["computed once and loaded, in part"] = best
    return tuple(
        Alternative(
            name=name,
            seconds=found.seconds,
            wall_s=found.wall_s,
            tokens_computed=found.tokens_computed,
            tokens_loaded=found.tokens_loaded,
            stored_bytes=found.stored_bytes,
        )
        for name, found in rows.items()
    )


def _reason(
    demand: Demand,
    best: Forecast,
    plain: Forecast,
    max_bytes: int,
    alternatives: Sequence[Alternative],
) -> str:
    if best.stored_bytes:
        return (
            f"{best.tokens_loaded} prompt tokens are loaded, {best.tokens_computed} computed "
            f"instead of {plain.tokens_computed}: {best.seconds:.3g} actor-seconds until all "
            f"prompts are ready instead of {plain.seconds:.3g}"
        )
    head = "nothing is stored: "
    if any(best.cuts):
        head = "each actor computes once what its prompts share; nothing is stored: "
    return head + _why_nothing_stored(demand, best, max_bytes, alternatives)


def _why_nothing_stored(
    demand: Demand, best: Forecast, max_bytes: int, alternatives: Sequence[Alternative]
) -> str:
    largest = max(alternatives, key=lambda row: row.stored_bytes)
    if largest.stored_bytes > max_bytes and largest.seconds < best.seconds:
        return f"{largest.stored_bytes} bytes would pay, but only {max_bytes} are allowed"
    several = demand.most_actors
    if several < 2:
        return "no two actors need the same prefix"
    least = break_even_tokens(demand.costs, several)
    if math.isinf(least):
        return "loading keys and values takes longer than computing them"
    return (
        f"loading saves no time: a prefix that {several} actors need pays from about "
        f"{math.ceil(least)} tokens if nobody waits for it"
    )
