"""A plan of who generates what: the strategies' candidates, and what each would come to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

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


STRATEGIES = ("group_affine", "balanced", "sorted", "random")


@dataclass(frozen=True)
class Situation:
    """What the choice depends on.

    ``cost`` without a measured decode: nothing is known yet, and as many actors as allowed are
    used. ``strategies``: the candidates, of ``STRATEGIES``. ``cold_start_s`` is paid by each actor
    beyond the ``num_warm``; it can begin ``head_start_s`` before the rollout does.
    ``early_release``: actors are let go when done. ``min_actors`` equal to ``max_actors`` fixes
    the number. ``seed`` shuffles ``random``. ``reference``: (T₀, C₀) in seconds; None: those of the
    static plan. ``slowest``: plans that take longer than so many times T₀ are left out while
    another does not.
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


def candidates(items: Items, num_actors: int, strategy: str, situation: Situation) -> list[Dealing]:
    """The assignments of ``strategy`` to so many actors."""
    longest_s, token_s, context_s = situation.cost.coefficients["decode"]
    work = token_s * items.remaining + context_s * items.context
    # Of a token, attention too.
    each_s = work.sum().item() / max(items.remaining.sum().item(), 1e-9)
    match strategy:
        case "random":
            return [random_equal(items, num_actors, situation.seed)]
        case "balanced":
            return [
                balanced(items, num_actors, work),
                finishing_together(items, num_actors, longest_s, each_s),
            ]
        case "sorted":
            return [length_sorted(items, num_actors, longest_s, each_s)]
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


def plans_with(
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


def bound(
    items: Items,
    number: int,
    situation: Situation,
    reference: tuple[float, float],
    limit_s: float,
) -> tuple[float, float]:
    """What no plan with so many actors is below: seconds late, and score."""
    iteration_s, token_s, context_s = situation.cost.coefficients["decode"]
    tokens = items.remaining.sum().item()
    held_s = token_s * tokens + context_s * items.context.sum().item()
    if situation.capacity.max_batch:
        held_s += iteration_s * tokens / situation.capacity.max_batch
    seconds = held_s / number
    time_0, held_0 = (max(value, 1e-9) for value in reference)
    weight = situation.time_weight
    score = weight * seconds / time_0 + (1 - weight) * held_s / held_0
    return max(0.0, seconds - limit_s), score
