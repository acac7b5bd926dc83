"""How many actors a step's rollout should have, and who generates what.

Minimises ``λ · T/T₀ + (1 − λ) · C/C₀`` over 1 .. maximum actors and the assignment strategies,
where T is the predicted time of the slowest actor in seconds and C the function-seconds held: the
sum of all actors' seconds where an actor is released when it is done, else their number times T.
T₀ and C₀ belong to what a serverful framework would do: all actors allowed, equal random shares,
none released. The space is small, so the choice is exact. An actor that is not warm pays its cold
start first, and is held meanwhile. (Form of the objective: RLHFless, arXiv 2602.22718, actor
scaling; its own normalisation does not carry from one workload to another.)

Worked number: λ = 0.5, T₀ = 60 s, C₀ = 240 s; 2 actors of 70 and 50 s score
0.5 · 70/60 + 0.5 · 120/240 = 0.83, 4 actors of 60, 40, 40 and 30 s 0.5 + 0.5 · 170/240 = 0.85.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from scaling.assignment import (
    Assignment,
    Item,
    balanced,
    finishing_together,
    group_affine,
    length_sorted,
    random_equal,
)
from scaling.cost_model import CostModel
from scaling.tails import Finish, last
from scaling.work import Capacity, Prefixes, actor_finish


@dataclass(frozen=True)
class ActorPlan:
    """An alternative: predicted makespan and actor-seconds, and the objective (None: no
    prediction)."""

    assignment: tuple[tuple[str, ...], ...]
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


def choose(items: Sequence[Item], situation: Situation) -> ActorDecision:
    """The best plan for ``items`` (at least one). The first of equals: fewer actors, then the
    order of ``strategies``."""
    most = min(situation.max_actors, len(items))
    if "decode" not in situation.cost.measured:
        strategy = situation.strategies[0]
        assignment = candidates(items, most, strategy, situation)[0]
        plan = ActorPlan(_ids(assignment), None, None, None, strategy)
        return ActorDecision(plan, (plan,), "nothing measured yet: as many actors as allowed")
    reference = situation.reference or static_reference(items, situation)
    plans = tuple(
        evaluate(assignment, strategy, situation, reference)
        for number in range(min(situation.min_actors, most), most + 1)
        for strategy in situation.strategies
        for assignment in candidates(items, number, strategy, situation)
    )
    limit_s = situation.slowest * max(reference[0], 1e-9)
    chosen = min(plans, key=lambda plan: _late_then_score(plan, limit_s))
    return ActorDecision(chosen, plans, _reason(chosen, plans, situation, limit_s))


def candidates(
    items: Sequence[Item], num_actors: int, strategy: str, situation: Situation
) -> list[Assignment]:
    """The assignments of ``strategy`` to so many actors. Within an actor the longest come first, so
    that where samples queue none of them is left for last (``random`` keeps its order)."""
    cost = situation.cost
    longest_s, token_s, context_s = cost.coefficients["decode"]

    def work(item: Item) -> float:
        context = item.prompt_tokens + item.generated + item.remaining / 2
        return (token_s + context_s * context) * item.remaining

    match strategy:
        case "random":
            return [random_equal(items, num_actors, situation.seed)]
        case "balanced":
            found = [
                balanced(items, num_actors, work),
                finishing_together(items, num_actors, longest_s, token_s),
            ]
        case "sorted":
            found = [length_sorted(items, num_actors, longest_s, token_s)]
        case "group_affine":
            found = [group_affine(items, num_actors, work)]
        case _:
            raise ValueError(f"no such assignment strategy: {strategy}")
    return [
        [sorted(actor, key=lambda item: (-item.remaining, item.group)) for actor in assignment]
        for assignment in found
    ]


def evaluate(
    assignment: Assignment, strategy: str, situation: Situation, reference: tuple[float, float]
) -> ActorPlan:
    """Predicted seconds, actor-seconds and score of a plan; the items' lengths are believed."""
    actors = finishes(assignment, situation)
    by_actor = tuple(actor.mean() for actor in actors)
    # No expectation of a maximum is below the largest expectation, up to its table's precision.
    seconds = max(last(actors), *by_actor)
    held = sum(by_actor) if situation.early_release else len(actors) * seconds
    num_cold = max(0, len(actors) - situation.num_warm)
    held += num_cold * min(situation.cold_start_s, situation.head_start_s)
    weight = situation.time_weight
    time_0, held_0 = (max(value, 1e-9) for value in reference)
    score = weight * seconds / time_0 + (1 - weight) * held / held_0
    return ActorPlan(_ids(assignment), seconds, held, score, strategy, by_actor)


def finishes(assignment: Assignment, situation: Situation) -> list[Finish]:
    """When each actor is done, with what of its cold start the head start does not hide. The first
    actor in order that needs a prompt computes it."""
    actors = []
    delay_s = max(0.0, situation.cold_start_s - situation.head_start_s)
    seen: set[int] = set()
    for index, items in enumerate(assignment):
        first = frozenset(item.group for item in items) - seen
        seen |= first
        start_s = delay_s if index >= situation.num_warm else 0.0
        actors.append(
            actor_finish(
                items, situation.cost, situation.capacity, situation.prefixes, first, start_s
            )
        )
    return actors


def static_reference(items: Sequence[Item], situation: Situation) -> tuple[float, float]:
    """(T₀, C₀): seconds and function-seconds of equal random shares over all actors allowed, all
    warm, and held until the last is done."""
    warm = replace(situation, num_warm=situation.max_actors)
    actors = finishes(random_equal(items, situation.max_actors), warm)
    return last(actors), last(actors) * len(actors)


def _reason(
    chosen: ActorPlan, plans: Sequence[ActorPlan], situation: Situation, limit_s: float
) -> str:
    late, score = _late_then_score(chosen, limit_s)
    if late:
        return f"no plan keeps within {limit_s:.3g} s (objective.max_slowdown): this one is nearest"
    reason = f"lowest score at time weight {situation.time_weight:g}"
    if any(_late_then_score(plan, limit_s)[1] < score for plan in plans):
        reason += f" of those that take no more than {limit_s:.3g} s (objective.max_slowdown)"
    return reason


def _late_then_score(plan: ActorPlan, limit_s: float) -> tuple[float, float]:
    assert plan.seconds is not None and plan.score is not None
    return max(0.0, plan.seconds - limit_s), plan.score


def _ids(assignment: list[list[Item]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(item.id for item in actor) for actor in assignment)
