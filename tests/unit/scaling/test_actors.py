import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling import plans
from scaling.actors import NEAR, choose
from scaling.cost_model import PRIORS, CostModel
from scaling.forecasts import Forecast
from scaling.items import Dealing, Item, Items
from scaling.plans import STRATEGIES, ActorPlan, Situation, static_reference
from scaling.work import Capacity, Prefixes

COST = CostModel(
    coefficients={**PRIORS, "decode": (1e-3, 1e-3, 0.0), "prefill": (0.0, 1e-3)},
    measured=frozenset({"decode", "prefill"}),
)
SITUATION = Situation(max_actors=4, cost=COST, time_weight=0.5, num_warm=4)
ITEMS = [Item(f"{g}/{k}", g, 20.0) for g in range(8) for k in range(8)]
small = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 500)), min_size=1, max_size=12).map(
    lambda rows: [Item(str(i), g, float(n), 10 * g) for i, (g, n) in enumerate(rows)]
)


Assignment = list[list[Item]]


def evaluate(
    assignment: Assignment, strategy: str, situation: Situation, reference: tuple[float, float]
) -> ActorPlan:
    samples = [item for actor in assignment for item in actor]
    owner = np.repeat(np.arange(len(assignment)), [len(actor) for actor in assignment])
    dealing = Dealing(np.arange(len(samples)), owner, len(assignment))
    return plans.evaluate(Items.of(samples), [(strategy, dealing)], situation, reference)[0]


def score(plan: ActorPlan) -> float:
    assert plan.score is not None
    return plan.score


def test_worked_example() -> None:
    # 8 groups of 8 samples of 20 tokens: 20 iterations and 1,280 tokens of 1 ms each on one actor.
    situation = replace(SITUATION, strategies=("group_affine",))
    plans = choose(ITEMS, situation).alternatives
    assert [plan.num_actors for plan in plans] == [1, 2, 3, 4]
    assert plans[0].seconds == pytest.approx(1.3)
    assert plans[3].seconds == pytest.approx(0.34)
    assert plans[3].actor_seconds == pytest.approx(1.36)
    # The static plan: 4 actors of 16 samples, held for 0.34 s each.
    assert score(plans[0]) == pytest.approx(0.5 * 1.3 / 0.34 + 0.5 * 1.3 / 1.36)


def test_time_alone_takes_all_actors_and_cost_alone_takes_one() -> None:
    assert choose(ITEMS, replace(SITUATION, time_weight=1.0)).chosen.num_actors == 4
    assert choose(ITEMS, replace(SITUATION, time_weight=0.0)).chosen.num_actors == 1


def test_cold_starts_are_weighed() -> None:
    cold = replace(SITUATION, num_warm=1, cold_start_s=100.0, time_weight=1.0)
    assert choose(ITEMS, cold).chosen.num_actors == 1


def test_a_head_start_hides_the_delay_of_a_start_but_not_its_seconds() -> None:
    warm = replace(SITUATION, reference=(1.0, 4.0))
    cold = replace(warm, num_warm=1, cold_start_s=100.0, head_start_s=120.0, time_weight=1.0)
    assert choose(ITEMS, cold).chosen.num_actors == 4
    of_warm, of_cold = (
        evaluate([[item] for item in ITEMS[:4]], "balanced", situation, (1.0, 4.0))
        for situation in (warm, cold)
    )
    assert of_cold.seconds == of_warm.seconds
    assert of_cold.actor_seconds == pytest.approx((of_warm.actor_seconds or 0.0) + 3 * 100.0)


def test_what_static_scheduling_takes_knows_no_cold_starts() -> None:
    cold = replace(SITUATION, num_warm=0, cold_start_s=100.0)
    assert static_reference(ITEMS, cold) == static_reference(ITEMS, SITUATION)


def test_without_measurements_as_many_as_allowed() -> None:
    decision = choose(ITEMS, replace(SITUATION, cost=CostModel()))
    assert decision.chosen.num_actors == 4
    assert decision.chosen.score is None
    assert "nothing measured" in decision.reason


def test_the_number_can_be_fixed() -> None:
    fixed = replace(SITUATION, min_actors=4, time_weight=0.0)
    assert {plan.num_actors for plan in choose(ITEMS, fixed).alternatives} == {4}


def test_without_release_actors_are_held_until_the_last() -> None:
    items = [Item("a", 0, 100.0), Item("b", 1, 10.0)]
    situation = replace(SITUATION, max_actors=2, min_actors=2, early_release=False)
    plan = choose(items, situation).chosen
    assert plan.actor_seconds == pytest.approx(2 * 0.2)
    released = choose(items, replace(situation, early_release=True)).chosen
    assert released.actor_seconds == pytest.approx(0.2 + 0.02)


def test_rows_make_more_actors_worth_while() -> None:
    # Iterations cost all there is: one actor with room for all is as quick as four.
    free = CostModel(coefficients={**PRIORS, "decode": (1e-3, 0, 0)}, measured=COST.measured)
    roomy = replace(SITUATION, cost=free)
    assert choose(ITEMS, roomy).chosen.num_actors == 1
    crowded = replace(roomy, capacity=Capacity(max_batch=16), time_weight=1.0)
    assert choose(ITEMS, crowded).chosen.num_actors == 4


def test_long_prompts_keep_groups_together_unless_they_can_be_loaded() -> None:
    items = [Item(f"{g}/{k}", g, 50.0 * (1 + k), 2000) for g in range(4) for k in range(4)]
    costly = replace(SITUATION, time_weight=0.3)
    chosen = choose(items, costly).chosen
    for group in range(4):
        holders = [
            actor for actor in chosen.assignment if any(i.startswith(f"{group}/") for i in actor)
        ]
        assert len(holders) == 1
    loaded = replace(costly, prefixes=Prefixes(load_s=dict.fromkeys(range(4), 1e-4)))
    reference = static_reference(items, costly)
    dealing = plans.candidates(Items.of(items), 4, "balanced", costly)[0]
    balanced = [[items[place] for place in actor.tolist()] for actor in dealing.by_actor()]
    assert score(evaluate(balanced, "", loaded, reference)) < score(
        evaluate(balanced, "", costly, reference)
    )


def test_tails_count() -> None:
    # Of equal means, the group that may last ten times as long decides when the last actor is done.
    tail = Forecast((10.0,) * 9 + (110.0,), max_tokens=200)
    items = [Item(str(i), i, tail.mean, forecast=tail) for i in range(16)]
    sure = [Item(str(i), i, tail.mean) for i in range(16)]
    fixed = replace(SITUATION, min_actors=4)
    risky, safe = choose(items, fixed).chosen, choose(sure, fixed).chosen
    assert risky.seconds is not None and safe.seconds is not None
    assert risky.seconds > safe.seconds + 0.05


def test_a_limit_on_time_is_kept_where_it_can_be() -> None:
    cheap = replace(SITUATION, time_weight=0.0)
    assert choose(ITEMS, cheap).chosen.num_actors == 1
    assert choose(ITEMS, replace(cheap, slowest=1.0)).chosen.num_actors == 4
    # Nothing is that quick: the quickest there is.
    assert choose(ITEMS, replace(cheap, slowest=0.1)).chosen.num_actors == 4


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="no such assignment strategy: best"):
        choose(ITEMS, replace(SITUATION, strategies=("best",)))


@given(small, st.integers(1, 6), st.integers(0, 6), st.floats(0, 1), st.booleans(), st.booleans())
def test_the_choice_is_the_best_alternative_and_assigns_every_sample_once(
    items: list[Item], most: int, warm: int, weight: float, release: bool, dedup: bool
) -> None:
    situation = Situation(
        max_actors=most,
        cost=COST,
        time_weight=weight,
        num_warm=warm,
        cold_start_s=0.1,
        strategies=STRATEGIES,
        early_release=release,
        prefixes=Prefixes(dedup=dedup),
    )
    decision = choose(items, situation)
    lowest = min(map(score, decision.alternatives))
    near = [p for p in decision.alternatives if score(p) <= lowest * (1 + NEAR)]
    assert decision.chosen in near
    assert decision.chosen.actor_seconds == min(p.actor_seconds or 0.0 for p in near)
    for plan in decision.alternatives:
        assert sorted(i for actor in plan.assignment for i in actor) == sorted(i.id for i in items)
        assert plan.seconds is not None and plan.actor_seconds is not None
        assert plan.seconds == pytest.approx(max(plan.by_actor))
        assert plan.actor_seconds <= plan.num_actors * plan.seconds * (1 + 1e-9)


@given(small, st.integers(1, 6), st.floats(0, 1))
def test_more_budget_never_gives_a_worse_plan(items: list[Item], most: int, weight: float) -> None:
    def best(limit: int) -> float:
        situation = replace(
            SITUATION, max_actors=limit, time_weight=weight, num_warm=limit, reference=(1.0, 4.0)
        )
        return score(choose(items, situation).chosen)

    assert best(most + 1) <= best(most) * (1 + NEAR) + 1e-12


def random_case(seed: int, most: int) -> tuple[list[Item], Situation, random.Random]:
    rng = random.Random(seed)
    prompts = [rng.choice([5, 500]) for _ in range(4)]
    items = []
    for i in range(rng.randint(2, most)):
        group = rng.randint(0, 3)
        items.append(Item(str(i), group, float(rng.randint(1, 500)), prompts[group]))
    iteration_s = 10 ** rng.uniform(-3, -1)
    cost = CostModel(
        coefficients={
            **PRIORS,
            "decode": (iteration_s, iteration_s * 10 ** rng.uniform(-3, 0), 0.0),
            "prefill": (0.01, 10 ** rng.uniform(-5, -3)),
        },
        measured=frozenset({"decode", "prefill"}),
    )
    weight = rng.choice([0.0, 0.3, 0.5, 0.8, 1.0])
    situation = Situation(max_actors=3, cost=cost, time_weight=weight, num_warm=3)
    return items, replace(situation, reference=static_reference(items, situation)), rng


def partitions(items: list[Item], parts: int) -> Iterator[Assignment]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:], parts):
        for i in range(len(rest)):
            yield [*rest[:i], [items[0], *rest[i]], *rest[i + 1 :]]
        if len(rest) < parts:
            yield [[items[0]], *rest]


def test_the_choice_is_nearly_the_best_of_all_partitions() -> None:
    ratios = []
    for seed in range(100):
        items, situation, _ = random_case(seed, 6)
        reference = situation.reference
        assert reference is not None
        best = min(score(evaluate(p, "", situation, reference)) for p in partitions(items, 3))
        ratios.append(score(choose(items, situation).chosen) / best)
    assert min(ratios) >= 1 - 1e-9
    assert sum(ratios) / len(ratios) < 1.005
    assert max(ratios) < 1.15


def in_truth(plan: ActorPlan, items: list[Item], situation: Situation) -> float:
    """The score of a plan with the true lengths of ``items``."""
    truth = {item.id: item for item in items}
    assert situation.reference is not None
    assignment = [[truth[i] for i in actor] for actor in plan.assignment]
    return score(evaluate(assignment, plan.strategy, situation, situation.reference))


def test_knowing_the_lengths_never_does_worse_than_predicting_them() -> None:
    ratios = []
    for seed in range(150):
        items, situation, rng = random_case(seed, 30)
        noise = [rng.lognormvariate(0, 0.7) for _ in items]
        predicted = [
            replace(item, tokens=max(1.0, item.tokens * factor))
            for item, factor in zip(items, noise, strict=True)
        ]
        guess, oracle = choose(predicted, situation), choose(items, situation)
        # Over the candidates of both, the oracle's pick is the best by definition.
        plans = [*guess.alternatives, *oracle.alternatives]
        best = min(in_truth(plan, items, situation) for plan in plans)
        real = in_truth(guess.chosen, items, situation)
        assert best <= real
        # Its own candidates alone are as good, but for what a heuristic misses by luck.
        ratios.append(score(oracle.chosen) / real)
    assert max(ratios) <= 1.02
    assert sum(ratios) / len(ratios) < 0.95


def test_the_reason_says_when_lower_scores_were_too_slow() -> None:
    cheap = replace(SITUATION, time_weight=0.0)
    assert choose(ITEMS, cheap).reason == "lowest score at time weight 0"
    bound = choose(ITEMS, replace(cheap, slowest=1.0))
    assert score(bound.chosen) > min(map(score, bound.alternatives))
    assert "those that take no more than 0.34 s (objective.max_slowdown)" in bound.reason
    assert "no plan keeps within" in choose(ITEMS, replace(cheap, slowest=0.5)).reason


def many(seed: int) -> tuple[list[Item], Situation]:
    """A step of some hundred samples with tails, capacity, cold starts or prefixes to share."""
    rng = random.Random(seed)
    size, prompt = rng.choice([4, 8]), rng.choice([20, 400, 2000])
    items = []
    for group in range(rng.choice([24, 64])):
        centre = min(1500.0, rng.lognormvariate(5.5, 0.6))
        support = tuple(sorted(min(2000.0, centre * rng.lognormvariate(0, 0.8)) for _ in range(24)))
        known = Forecast(tuple(max(1.0, length) for length in support), 2000)
        names = [f"{group}/{k}" for k in range(size)]
        items += [Item(name, group, known.mean, prompt, forecast=known) for name in names]
    token_s = 10 ** rng.uniform(-5, -3)
    cost = CostModel(
        coefficients={**PRIORS, "decode": (0.02, token_s, 1e-8), "prefill": (0.02, 1e-4)},
        measured=frozenset({"decode", "prefill"}),
    )
    most = rng.choice([24, 48])
    situation = Situation(
        max_actors=most,
        cost=cost,
        time_weight=rng.choice([0.0, 0.3, 0.5, 0.8, 1.0]),
        num_warm=rng.choice([most, most // 3]),
        cold_start_s=rng.choice([0.0, 5.0]),
        capacity=Capacity(max_batch=rng.choice([0, 16])),
        slowest=rng.choice([1.2, float("inf")]),
        prefixes=Prefixes(load_s=rng.choice([{}, dict.fromkeys(range(64), 0.01)])),
    )
    return items, replace(situation, reference=static_reference(items, situation))


def test_searching_numbers_finds_what_trying_all_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = []
    for seed in range(24):
        items, situation = many(seed)
        decisions = []
        for limit in (0, 10**9):
            monkeypatch.setattr("scaling.actors.EXACT", limit)
            decisions.append(choose(items, situation))
        found, exact = decisions
        assert len({p.num_actors for p in exact.alternatives}) == situation.max_actors
        tried = len({p.num_actors for p in found.alternatives})
        assert f"; {tried} of {situation.max_actors} numbers of actors were tried" in found.reason
        limit_s = situation.slowest * (situation.reference or (0.0, 0.0))[0]
        if (exact.chosen.seconds or 0.0) <= limit_s:
            assert (found.chosen.seconds or 0.0) <= limit_s
        ratios.append(score(found.chosen) / score(exact.chosen))
    assert max(ratios) < 1.012
    assert sum(ratios) / len(ratios) < 1.002


def test_of_near_equals_the_one_that_holds_least_is_taken() -> None:
    # One response takes nearly all the time; the others fit beside it, on one actor or on three.
    items = [Item("long", 0, 1000.0), *(Item(str(i), 1 + i, 10.0) for i in range(6))]
    cost = CostModel(coefficients={**PRIORS, "decode": (0.1, 1e-4, 0)}, measured=COST.measured)
    decision = choose(items, replace(SITUATION, cost=cost, time_weight=1.0))
    quickest = min(decision.alternatives, key=score)
    assert decision.chosen.num_actors == 1 < quickest.num_actors
    assert score(decision.chosen) <= score(quickest) * (1 + NEAR)
    assert "fewest function-seconds within 0.5 % of the lowest score" in decision.reason
