"""How many actors a step's rollout should have.

Minimises ``λ · T/T₀ + (1 − λ) · C/C₀`` over 1 .. maximum actors, where T is the predicted time of
the slowest actor in seconds, C the sum of all actors' seconds (an actor is released when it is
done), and T₀, C₀ belong to the plan that uses every actor allowed. The space is small, so the
choice is exact. An actor that is not warm pays its cold start first. (Form of the objective:
RLHFless, actor scaling; the normalisation is relative to the job's own widest plan.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.assignment import Item, group_affine
from scaling.decode_cost import DecodeCost


@dataclass(frozen=True)
class ActorPlan:
    """An alternative: predicted makespan and actor-seconds, and the objective (None: no
    prediction)."""

    assignment: tuple[tuple[str, ...], ...]
    seconds: float | None
    actor_seconds: float | None
    score: float | None

    @property
    def num_actors(self) -> int:
        return len(self.assignment)


@dataclass(frozen=True)
class ActorDecision:
    chosen: ActorPlan
    alternatives: tuple[ActorPlan, ...]
    reason: str


@dataclass(frozen=True)
class ActorSituation:
    """What the choice depends on. ``cost`` None: nothing measured yet. ``tail`` as
    ``scaling.lengths.tail_factor``; ``cold_start_s`` for each actor beyond the ``num_warm``."""

    max_actors: int
    num_warm: int
    cold_start_s: float
    cost: DecodeCost | None
    tail: float
    max_tokens: int
    time_weight: float


def choose_actors(items: Sequence[Item], situation: ActorSituation) -> ActorDecision:
    """The best number of actors for ``items`` (at least one item) and who generates what."""
    most = min(situation.max_actors, len(items))
    if situation.cost is None:
        plan = ActorPlan(_ids(group_affine(items, most)), None, None, None)
        return ActorDecision(plan, (plan,), "nothing measured yet: as many actors as allowed")
    timed = [_timed(items, k, situation, situation.cost) for k in range(1, most + 1)]
    time_0 = max(timed[-1][1], 1e-9)
    cost_0 = max(timed[-1][2], 1e-9)
    weight = situation.time_weight
    plans = tuple(
        ActorPlan(ids, seconds, total, weight * seconds / time_0 + (1 - weight) * total / cost_0)
        for ids, seconds, total in timed
    )
    # The first of equals: fewer actors.
    chosen = min(plans, key=lambda plan: plan.score if plan.score is not None else 0.0)
    return ActorDecision(chosen, plans, f"lowest score at time weight {weight:g}")


def _timed(
    items: Sequence[Item], num_actors: int, situation: ActorSituation, cost: DecodeCost
) -> tuple[tuple[tuple[str, ...], ...], float, float]:
    assignment = group_affine(items, num_actors)
    seconds = []
    for index, actor in enumerate(assignment):
        longest = min(max(i.tokens for i in actor) * situation.tail, float(situation.max_tokens))
        cold = situation.cold_start_s if index >= situation.num_warm else 0.0
        seconds.append(cold + cost.seconds(longest, sum(i.tokens for i in actor)))
    return _ids(assignment), max(seconds), sum(seconds)


def _ids(assignment: list[list[Item]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(item.id for item in actor) for actor in assignment)
