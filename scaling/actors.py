"""How many actors a step's rollout should have, and who generates what.

Minimises ``λ · T/T₀ + (1 − λ) · C/C₀`` over 1 .. maximum actors and the assignment strategies,
where T is the predicted time of the slowest actor in seconds and C the function-seconds held: the
sum of all actors' seconds where an actor is released when it is done, else their number times T.
T₀ and C₀ belong to what a serverful framework would do: all actors allowed, equal random shares,
none released. An actor that is not warm pays its cold start first, and is held meanwhile. (Form of
the objective: RLHFless, arXiv 2602.22718, actor scaling; its own normalisation does not carry from
one workload to another.)

Up to ``EXACT`` samples times numbers of actors every number is tried; beyond, those that
``scaling.search`` picks: on 240 random instances their best score was within 0.5 % of that of all
numbers but once, and then within 1.5 %. Of plans whose scores are within ``NEAR`` of the lowest
the one that holds the fewest function-seconds is taken: predictions are not that good, and time
alone (λ = 1) would take all actors for nothing.

Worked number: λ = 0.5, T₀ = 60 s, C₀ = 240 s; 2 actors of 70 and 50 s score
0.5 · 70/60 + 0.5 · 120/240 = 0.83, 4 actors of 60, 40, 40 and 30 s 0.5 + 0.5 · 170/240 = 0.85.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scaling import search
from scaling.items import Item, Items, Shares
from scaling.plans import (
    ActorPlan,
    Situation,
    bound,
    candidates,
    plans_with,
    static_reference,
)

EXACT = 4096
"""Samples times numbers of actors: all plans of 256 samples on up to 16 actors."""
NEAR = 0.005
"""Relative difference of scores that is none."""
_AT_ONCE = 2048
"""Samples of plans with some number of actors that are worth judging together."""


@dataclass(frozen=True)
class ActorDecision:
    chosen: ActorPlan
    alternatives: tuple[ActorPlan, ...]
    reason: str


def choose(samples: Sequence[Item] | Items, situation: Situation) -> ActorDecision:
    """The best plan for ``samples`` (at least one). The first of equals: fewer actors, then the
    order of ``strategies``."""
    items = samples if isinstance(samples, Items) else Items.of(samples)
    most = min(situation.max_actors, len(items))
    least = min(situation.min_actors, most)
    if "decode" not in situation.cost.measured:
        strategy = situation.strategies[0]
        dealing = candidates(items, most, strategy, situation)[0]
        plan = ActorPlan(Shares(items, dealing), None, None, None, strategy)
        return ActorDecision(plan, (plan,), "nothing measured yet: as many actors as allowed")
    reference = situation.reference or static_reference(items, situation)
    limit_s = situation.slowest * max(reference[0], 1e-9)
    if (most - least + 1) * len(items) <= EXACT:
        plans = list(plans_with(items, range(least, most + 1), situation, reference))
    else:
        plans = _searched(items, least, most, situation, reference, limit_s)
    # The first of equals: min takes it, and sorting keeps it first.
    plans.sort(key=lambda plan: plan.num_actors)
    chosen = _pick(plans, limit_s)
    reason = _reason(chosen, plans, situation, limit_s)
    tried = len({plan.num_actors for plan in plans})
    if tried < most - least + 1:
        reason += f"; {tried} of {most - least + 1} numbers of actors were tried"
    return ActorDecision(chosen, tuple(plans), reason)


def _searched(
    items: Items,
    least: int,
    most: int,
    situation: Situation,
    reference: tuple[float, float],
    limit_s: float,
) -> list[ActorPlan]:
    """Plans with the numbers of actors that are worth a try."""
    groups, rows = len(items.groups), situation.capacity.max_batch
    # As many as have equally many groups, fill their rows once or twice, and are warm.
    kinks = [situation.num_warm, *(-(-groups // each) for each in range(1, 5))]
    kinks += [-(-len(items) // (rounds * rows)) for rounds in (1, 2) if rows]
    tried = search.spread(least, most, kinks)
    plans: list[ActorPlan] = []
    best: dict[int, tuple[float, float]] = {}
    together = max(1, _AT_ONCE // len(items))

    def attempt(numbers: list[int]) -> None:
        for plan in plans_with(items, numbers, situation, reference):
            plans.append(plan)
            found = _late_then_score(plan, limit_s)
            best[plan.num_actors] = min(found, best.get(plan.num_actors, found))

    # Most actors first: where samples would queue for rows, plans take long to judge, and are
    # mostly so slow that a bound tells.
    pending = tried[::-1]
    while pending:
        numbers, pending = pending[:together], pending[together:]
        bounds = {n: bound(items, n, situation, reference, limit_s) for n in numbers}
        late, lowest = min(best.values(), default=(math.inf, math.inf))
        best |= {n: found for n, found in bounds.items() if found > (late, lowest * (1 + NEAR))}
        attempt([number for number in numbers if number not in best])
    search.refine(tried, best.__getitem__, attempt)
    return plans


def _pick(plans: Sequence[ActorPlan], limit_s: float) -> ActorPlan:
    """Of those that are as little late as can be, and of their near equals the cheapest."""
    late, lowest = min(_late_then_score(plan, limit_s) for plan in plans)
    near = lowest + NEAR * abs(lowest)
    equals = [p for p in plans if _late_then_score(p, limit_s)[0] <= late and _score(p) <= near]
    return min(equals, key=lambda plan: (plan.actor_seconds, plan.score))


def _reason(
    chosen: ActorPlan, plans: Sequence[ActorPlan], situation: Situation, limit_s: float
) -> str:
    late, score = _late_then_score(chosen, limit_s)
    if late:
        return f"no plan keeps within {limit_s:.3g} s (objective.max_slowdown): this one is nearest"
    in_time = [p for p in plans if not _late_then_score(p, limit_s)[0]]
    reason = f"lowest score at time weight {situation.time_weight:g}"
    if any(_score(plan) < score for plan in in_time):
        reason = f"fewest function-seconds within {100 * NEAR:g} % of the {reason}"
    if min(map(_score, plans)) < min(map(_score, in_time)):
        reason += f" of those that take no more than {limit_s:.3g} s (objective.max_slowdown)"
    return reason


def _late_then_score(plan: ActorPlan, limit_s: float) -> tuple[float, float]:
    assert plan.seconds is not None
    return max(0.0, plan.seconds - limit_s), _score(plan)


def _score(plan: ActorPlan) -> float:
    assert plan.score is not None
    return plan.score
