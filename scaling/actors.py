"""How many actors a step's rollout should have, and who generates what.

Minimises ``λ · T/T₀ + (1 − λ) · C/C₀`` over 1 .. maximum actors and the assignment strategies,
where T is the predicted time of the slowest actor in seconds and C the function-seconds held: the
sum of all actors' seconds where an actor is released when it is done, else their number times T.
T₀ and C₀ belong to what a serverful framework would do: all actors allowed, equal random shares,
none released. An actor that is not warm pays its cold start first, and is held meanwhile. (Form of
the objective: RLHFless, arXiv 2602.22718, actor scaling; its own normalisation does not carry from
one workload to another.)

Up to ``EXACT`` samples times numbers of actors every number is tried; beyond, those that
``scaling.search`` picks, which has found scores within 1 % of the best number's wherever that was
tested. Of plans whose scores are within ``NEAR`` of the lowest the one that holds the fewest
function-seconds is taken: predictions are not that good, and time alone (λ = 1) would take all
actors for nothing.

Worked number: λ = 0.5, T₀ = 60 s, C₀ = 240 s; 2 actors of 70 and 50 s score
0.5 · 70/60 + 0.5 · 120/240 = 0.83, 4 actors of 60, 40, 40 and 30 s 0.5 + 0.5 · 170/240 = 0.85.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scaling import search
from scaling.assignment import (
    balanced,
    finishing_together,
    group_affine,
    length_sorted,
    random_equal,
)
from scaling.cost_model import CostModel
from scaling.items import Dealing, Item, Items, Shares
from scaling.tails import Finish
from scaling.work import Capacity, Prefixes, Stack, finishes

EXACT = 4096
"""Samples times numbers of actors: all plans of 256 samples on up to 16 actors."""
NEAR = 0.005
"""Relative difference of scores that is none."""
_TOGETHER = 65_536
"""Samples of plans that are judged together: more would only take memory."""


@dataclass(frozen=True, eq=False)
class ActorPlan:
    """An alternative: predicted makespan and actor-seconds, and the objective (None: no
    prediction)."""

    assignment: Sequence[Sequence[str]]
    seconds: float | None
    actor_seconds: float | None
    score: float | None
    strategy: str = "group_affine"
    by_actor: tuple[float, ...] = ()

    @property
    def num_actors(self) -> int:
        return len(self.assignment)


@dataclass(frozen=True)
class ActorDecision:
    chosen: ActorPlan
    alternatives: tuple[ActorPlan, ...]
    reason: str


STRATEGIES = ("group_affine", "balanced", "sorted", "random")


@dataclass(frozen=True)
class Situation:
    """What the choice depends on.

    ``cost`` without a measured decode: nothing is known yet, and as many actors as allowed are
    used. ``strategies``: the candidates, of ``STRATEGIES``. ``cold_start_s`` is paid by each actor
    beyond the ``num_warm``; it can begin ``head_start_s`` before the rollout does.
    ``early_release``: actors are let go when done. ``min_actors`` equal to ``max_actors`` fixes
    the number. ``seed`` shuffles ``random``. ``reference``: (T₀, C₀) in
    seconds; None: those of the static plan. ``slowest``: plans that take longer than so many times
    T₀ are left out while another does not.
    """

    max_actors: int
    cost: CostModel
    time_weight: float
    num_warm: int = 0
    cold_start_s: float = 0.0
    head_start_s: float = 0.0
    min_actors: int = 1
    strategies: tuple[str, ...] = ("group_affine", "balanced", "sorted")
    early_release: bool = True
    capacity: Capacity = field(default_factory=Capacity)
    prefixes: Prefixes = field(default_factory=Prefixes)
    seed: int = 0
    reference: tuple[float, float] | None = None
    slowest: float = float("inf")


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
        plans = list(_plans(items, range(least, most + 1), situation, reference))
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


def candidates(items: Items, num_actors: int, strategy: str, situation: Situation) -> list[Dealing]:
    """The assignments of ``strategy`` to so many actors."""
    longest_s, token_s, context_s = situation.cost.coefficients["decode"]
    work = token_s * items.remaining + context_s * items.context
    match strategy:
        case "random":
            return [random_equal(items, num_actors, situation.seed)]
        case "balanced":
            return [
                balanced(items, num_actors, work),
                finishing_together(items, num_actors, longest_s, token_s),
            ]
        case "sorted":
            return [length_sorted(items, num_actors, longest_s, token_s)]
        case "group_affine":
            return [group_affine(items, num_actors, work)]
        case _:
            raise ValueError(f"no such assignment strategy: {strategy}")


def evaluate(
    items: Items,
    dealt: Sequence[tuple[str, Dealing]],
    situation: Situation,
    reference: tuple[float, float],
) -> list[ActorPlan]:
    """Predicted seconds, actor-seconds and scores of plans; the items' lengths are believed."""
    stack = Stack.of([dealing for _, dealing in dealt])
    finish = _finishes(items, stack, situation)
    by_actor = finish.mean()
    starts = np.flatnonzero(stack.index == 0)
    # No expectation of a maximum is below the largest expectation, up to its table's precision.
    seconds = np.maximum(finish.last(stack.plan), np.maximum.reduceat(by_actor, starts))
    numbers = np.diff([*starts.tolist(), len(stack.plan)])
    held = np.add.reduceat(by_actor, starts) if situation.early_release else numbers * seconds
    cold = np.maximum(0, numbers - situation.num_warm)
    held = held + cold * min(situation.cold_start_s, situation.head_start_s)
    weight = situation.time_weight
    time_0, held_0 = (max(value, 1e-9) for value in reference)
    score = weight * seconds / time_0 + (1 - weight) * held / held_0
    facts = zip(
        dealt, seconds.tolist(), held.tolist(), score.tolist(), starts.tolist(), strict=True
    )
    return [
        ActorPlan(
            Shares(items, dealing),
            seconds=time_s,
            actor_seconds=held_s,
            score=value,
            strategy=strategy,
            by_actor=tuple(by_actor[first : first + dealing.num_actors].tolist()),
        )
        for (strategy, dealing), time_s, held_s, value, first in facts
    ]


def static_reference(samples: Sequence[Item] | Items, situation: Situation) -> tuple[float, float]:
    """(T₀, C₀): seconds and function-seconds of equal random shares over all actors allowed, all
    warm, and held until the last is done."""
    items = samples if isinstance(samples, Items) else Items.of(samples)
    warm = replace(situation, num_warm=situation.max_actors)
    stack = Stack.of([random_equal(items, situation.max_actors)])
    last_s = _finishes(items, stack, warm).last(stack.plan).item()
    return last_s, last_s * len(stack.plan)


def _finishes(items: Items, stack: Stack, situation: Situation) -> Finish:
    """When each actor is done, with what of its cold start the head start does not hide."""
    finish = finishes(items, stack, situation.cost, situation.capacity, situation.prefixes)
    delay_s = max(0.0, situation.cold_start_s - situation.head_start_s)
    cold = stack.index >= situation.num_warm
    return replace(finish, rest_s=finish.rest_s + delay_s * cold)


def _plans(
    items: Items, numbers: Sequence[int], situation: Situation, reference: tuple[float, float]
) -> Iterator[ActorPlan]:
    """Every strategy's plans with so many actors, judged in handfuls."""
    dealt: list[tuple[str, Dealing]] = []
    for number in numbers:
        for strategy in situation.strategies:
            dealt += [(strategy, d) for d in candidates(items, number, strategy, situation)]
        if len(dealt) * len(items) >= _TOGETHER or number == numbers[-1]:
            yield from evaluate(items, dealt, situation, reference)
            dealt = []


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
    plans = list(_plans(items, tried, situation, reference))
    best: dict[int, tuple[float, float]] = {}
    for plan in plans:
        _note(best, plan, limit_s)

    def attempt(number: int) -> None:
        for plan in _plans(items, [number], situation, reference):
            plans.append(plan)
            _note(best, plan, limit_s)

    search.refine(tried, best.__getitem__, attempt)
    return plans


def _note(best: dict[int, tuple[float, float]], plan: ActorPlan, limit_s: float) -> None:
    found = _late_then_score(plan, limit_s)
    best[plan.num_actors] = min(found, best.get(plan.num_actors, found))


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
