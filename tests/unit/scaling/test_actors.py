from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scaling.actors import ActorSituation, choose_actors
from scaling.assignment import Item
from scaling.decode_cost import DecodeCost

SITUATION = ActorSituation(
    max_actors=4,
    num_warm=4,
    cold_start_s=1.0,
    cost=DecodeCost(iteration_s=0.001, token_s=0.001),
    tail=2.0,
    max_tokens=1000,
    time_weight=0.5,
)
ITEMS = [Item(f"{g}/{k}", g, 20.0) for g in range(8) for k in range(8)]


def test_worked_example() -> None:
    # 8 groups of 8 samples of 20 tokens; the longest is taken for 40. One actor: 40 iterations and
    # 1,280 tokens of 1 ms each.
    plans = choose_actors(ITEMS, SITUATION).alternatives
    assert [plan.num_actors for plan in plans] == [1, 2, 3, 4]
    assert plans[0].seconds is not None
    assert abs(plans[0].seconds - 1.32) < 1e-9
    assert plans[3].seconds is not None
    assert abs(plans[3].seconds - 0.36) < 1e-9
    assert plans[3].actor_seconds is not None
    assert abs(plans[3].actor_seconds - 1.44) < 1e-9


def test_time_alone_takes_all_actors_and_cost_alone_takes_one() -> None:
    assert choose_actors(ITEMS, replace(SITUATION, time_weight=1.0)).chosen.num_actors == 4
    assert choose_actors(ITEMS, replace(SITUATION, time_weight=0.0)).chosen.num_actors == 1


def test_cold_starts_are_weighed() -> None:
    cold = replace(SITUATION, num_warm=1, cold_start_s=100.0, time_weight=1.0)
    assert choose_actors(ITEMS, cold).chosen.num_actors == 1


def test_without_measurements_as_many_as_allowed() -> None:
    decision = choose_actors(ITEMS, replace(SITUATION, cost=None))
    assert decision.chosen.num_actors == 4
    assert decision.chosen.score is None


@given(st.floats(0, 1), st.integers(1, 8), st.integers(0, 8))
def test_the_choice_is_the_best_alternative(weight: float, most: int, warm: int) -> None:
    situation = replace(SITUATION, time_weight=weight, max_actors=most, num_warm=warm)
    decision = choose_actors(ITEMS, situation)
    assert decision.chosen.score == min(plan.score for plan in decision.alternatives)


@given(st.integers(1, 7))
def test_a_larger_maximum_never_gives_a_slower_plan(most: int) -> None:
    def fastest(limit: int) -> float:
        situation = replace(SITUATION, time_weight=1.0, max_actors=limit)
        seconds = choose_actors(ITEMS, situation).chosen.seconds
        assert seconds is not None
        return seconds

    assert fastest(most + 1) <= fastest(most) + 1e-9
