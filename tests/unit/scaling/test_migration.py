import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling import migration
from scaling.cost_model import PRIORS, CostModel
from scaling.loads import ActorLoad, Loads, MovePlan, MoveRules, Running

COST = CostModel(
    coefficients={**PRIORS, "decode": (0.01, 1e-4, 0.0), "prefill": (0.01, 1e-4)},
    measured=frozenset({"decode", "prefill"}),
)
RULES = MoveRules(time_weight=0.5)


def plan_moves(loads: list[ActorLoad], cost: CostModel, given_rules: MoveRules) -> MovePlan:
    return migration.plan_moves(Loads.of(loads), cost, given_rules)


def sample(name: str, remaining: float, generated: int = 100, **changes: object) -> Running:
    running = Running(name, 0, 100, generated, remaining)
    return replace(running, **changes)  # type: ignore[arg-type]


def actor(name: str, *samples: Running, **changes: object) -> ActorLoad:
    return replace(ActorLoad(name, samples, rows=16), **changes)  # type: ignore[arg-type]


def crowd(name: str, number: int, remaining: float) -> ActorLoad:
    return actor(name, *(sample(f"{name}{i}", remaining) for i in range(number)))


runnings = st.tuples(
    st.integers(0, 5),
    st.integers(1, 500),
    st.integers(0, 500),
    st.floats(1, 2000),
    st.none() | st.floats(0, 30),
)
actors = st.tuples(
    st.lists(runnings, max_size=8),
    st.integers(0, 10),
    st.integers(0, 20_000),
    st.floats(0.5, 4),
    st.floats(0, 5),
    st.booleans(),
)


@st.composite
def situations(draw: st.DrawFn) -> list[ActorLoad]:
    loads = []
    for a, (rows, most, kv, slow, ready, accept) in enumerate(draw(st.lists(actors, max_size=6))):
        samples = tuple(
            Running(f"{a}/{i}", group, prompt, done, left, ago)
            for i, (group, prompt, done, left, ago) in enumerate(rows)
        )
        loads.append(ActorLoad(str(a), samples, most, kv, slow, ready, accept))
    return loads


rules = st.builds(
    MoveRules,
    time_weight=st.floats(0, 1),
    reference=st.none() | st.just((100.0, 1000.0)),
    early_release=st.booleans(),
    load_s=st.just({0: 0.001, 1: 0.5}),
    vacate=st.booleans(),
    rebalance=st.booleans(),
)


def after(loads: list[ActorLoad], plan: MovePlan) -> dict[str, list[Running]]:
    """Who has what once the moves are made; fails where a move cannot be."""
    held = {load.name: {s.id: s for s in load.samples} for load in loads}
    for move in plan.moves:
        held[move.target][move.sample] = held[move.source].pop(move.sample)
    return {name: list(samples.values()) for name, samples in held.items()}


@given(situations(), rules)
def test_moves_conserve_samples_and_keep_to_the_rules(
    loads: list[ActorLoad], given_rules: MoveRules
) -> None:
    plan = plan_moves(loads, COST, given_rules)
    held = after(loads, plan)
    before = {s.id: s for load in loads for s in load.samples}
    assert sorted(s.id for samples in held.values() for s in samples) == sorted(before)
    assert len({move.sample for move in plan.moves}) == len(plan.moves)
    by_name = {load.name: load for load in loads}
    for move in plan.moves:
        target = by_name[move.target]
        assert move.source != move.target
        assert target.accept
        assert not target.rows or len(held[move.target]) <= target.rows
        kv = sum(s.held_tokens for s in held[move.target])
        assert not target.kv_tokens or kv <= target.kv_tokens + 1e-6
        ago = before[move.sample].moved_ago_s
        assert ago is None or ago >= given_rules.cooldown_s
    assert set(plan.vacated) == {
        load.name for load in loads if load.samples and not held[load.name]
    }


@given(situations(), rules)
def test_the_predicted_score_is_never_worse(loads: list[ActorLoad], given_rules: MoveRules) -> None:
    plan = plan_moves(loads, COST, given_rules)
    if plan.moves:
        gain = given_rules.margin * plan.before.score
        assert plan.after.score <= plan.before.score - gain + 1e-9
    else:
        assert plan.after == plan.before


@given(situations(), rules, st.floats(0, 30))
def test_moves_do_not_put_the_end_off_beyond_the_limit(
    loads: list[ActorLoad], given_rules: MoveRules, latest_s: float
) -> None:
    plan = plan_moves(loads, COST, replace(given_rules, latest_s=latest_s))
    assert plan.after.seconds <= max(latest_s, plan.before.seconds) + 1e-9


def test_worked_example() -> None:
    # A thin actor beside one that runs for long anyway.
    loads = [crowd("busy", 10, 500.0), actor("thin", sample("x", 400.0))]
    plan = plan_moves(loads, COST, replace(RULES, reference=(10.0, 20.0)))
    assert plan.vacated == ("thin",)
    assert [(m.sample, m.target) for m in plan.moves] == [("x", "busy")]
    assert plan.before.held_s - plan.after.held_s == pytest.approx(4.04 - 0.04 - 0.05 - 0.02 - 0.05)
    assert plan.after.seconds - plan.before.seconds == pytest.approx(0.04 + 0.05 + 0.02)
    assert "1 moves to vacate" in plan.reason


def test_vacating_stops_where_the_move_costs_more_than_it_saves() -> None:
    loads = [crowd("busy", 10, 500.0), actor("thin", sample("x", 3.0, generated=20_000))]
    assert plan_moves(loads, COST, RULES).moves == ()


def test_a_prompt_that_can_be_loaded_is_moved_sooner() -> None:
    long = sample("x", 100.0, generated=1, prompt_tokens=50_000, group=7)
    loads = [crowd("busy", 10, 500.0), actor("thin", long)]
    assert plan_moves(loads, COST, RULES).moves == ()
    assert plan_moves(loads, COST, replace(RULES, load_s={7: 0.05})).vacated == ("thin",)


def test_time_alone_vacates_nothing() -> None:
    loads = [crowd("busy", 10, 500.0), actor("thin", sample("x", 400.0))]
    assert plan_moves(loads, COST, replace(RULES, time_weight=1.0)).vacated == ()


def test_without_release_a_vacated_actor_saves_nothing() -> None:
    loads = [crowd("busy", 10, 500.0), actor("thin", sample("x", 400.0))]
    assert plan_moves(loads, COST, replace(RULES, early_release=False)).vacated == ()


def test_a_slow_actor_is_relieved() -> None:
    loads = [replace(crowd("slow", 8, 300.0), slowdown=3.0), crowd("fast", 4, 300.0)]
    plan = plan_moves(loads, COST, replace(RULES, time_weight=1.0))
    assert {m.source for m in plan.moves} == {"slow"}
    assert plan.after.seconds < 0.6 * plan.before.seconds


def test_samples_that_wait_go_where_there_is_room() -> None:
    # 32 samples for 16 rows beside an idle actor: two rounds become one.
    loads = [crowd("full", 32, 300.0), crowd("idle", 0, 0.0)]
    plan = plan_moves(loads, COST, replace(RULES, time_weight=1.0))
    assert len(plan.moves) == pytest.approx(16, abs=2)
    assert plan.after.seconds < 0.7 * plan.before.seconds


def test_an_instance_that_would_have_to_start_first_is_weighed_by_its_start() -> None:
    full = crowd("full", 32, 300.0)
    rules = replace(RULES, time_weight=1.0)
    soon = [full, replace(crowd("new", 0, 0.0), ready_s=0.5)]
    late = [full, replace(crowd("new", 0, 0.0), ready_s=10.0)]
    assert plan_moves(soon, COST, rules).moves
    assert not plan_moves(late, COST, rules).moves


def test_a_sample_rests_between_moves() -> None:
    loads = [crowd("busy", 10, 500.0), actor("thin", sample("x", 400.0, moved_ago_s=1.0))]
    assert "x" not in {move.sample for move in plan_moves(loads, COST, RULES).moves}
    rested = [loads[0], actor("thin", sample("x", 400.0, moved_ago_s=11.0))]
    assert plan_moves(rested, COST, RULES).vacated == ("thin",)


def test_a_plan_made_is_not_undone() -> None:
    # The loads that follow from a plan call for no further move, cool-down or not.
    loads = [crowd("a", 3, 200.0), crowd("b", 2, 400.0), crowd("c", 9, 300.0)]
    plan = plan_moves(loads, COST, RULES)
    assert plan.moves
    held = after(loads, plan)
    then = [replace(load, samples=tuple(held[load.name])) for load in loads]
    assert plan_moves([load for load in then if load.samples], COST, RULES).moves == ()


def test_no_actor_is_crowded_because_others_are_expected_to_take_longer() -> None:
    # By expectations "busy" has four seconds to spare; but any of its samples may be the last.
    loads = [crowd("busy", 10, 500.0), actor("long", sample("y", 900.0)), crowd("thin", 4, 300.0)]
    rules = replace(RULES, vacate=True, rebalance=False, latest_s=9.5)
    assert plan_moves(loads, COST, rules).vacated == ("thin",)
    unsure = [
        replace(load, samples=tuple(replace(s, late=900.0) for s in load.samples)) for load in loads
    ]
    plan = plan_moves(unsure, COST, rules)
    assert plan.before.seconds == pytest.approx(9.0 + 0.5)
    assert all(move.target != "busy" for move in plan.moves)


def test_nothing_to_do() -> None:
    for loads in ([], [crowd("a", 0, 0.0)], [crowd("a", 2, 10.0)]):
        plan = plan_moves(loads, COST, RULES)
        assert plan.moves == ()
        assert math.isfinite(plan.after.score)


@given(situations())
def test_loads_as_columns_say_the_same(loads: list[ActorLoad]) -> None:
    assert list(Loads.of(loads)) == loads


@given(situations(), rules, st.floats(0, 30))
def test_actors_that_are_not_tried_would_have_given_nothing(
    loads: list[ActorLoad], given_rules: MoveRules, latest_s: float
) -> None:
    limited = replace(given_rules, latest_s=latest_s)
    plan = plan_moves(loads, COST, limited)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration, "most_gained", lambda table, *_: np.full(len(table), np.inf))
        assert plan_moves(loads, COST, limited).moves == plan.moves


def test_where_there_is_nothing_to_gain_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration.LoadState, "give", None)
    full = [crowd(str(i), 16, 500.0) for i in range(12)]
    assert plan_moves(full, COST, RULES).moves == ()
    even = [crowd(str(i), 12, 500.0) for i in range(12)]
    assert plan_moves(even, COST, replace(RULES, time_weight=1.0)).moves == ()
    nearly_full = [crowd(str(i), 15, 500.0) for i in range(12)]
    assert plan_moves(nearly_full, COST, RULES).moves == ()


def test_of_many_actors_thin_ones_are_vacated_as_of_few() -> None:
    # One of a hundred holds a hundredth of all: the margin of sixteen would forbid any change.
    full = [crowd(f"full{i}", 16, 500.0) for i in range(98)]
    loads = [*full, crowd("busy", 10, 500.0), actor("thin", sample("x", 400.0))]
    cheap = replace(RULES, time_weight=0.0)
    assert plan_moves(loads, COST, cheap).vacated == ("thin",)
    all_told = replace(cheap, margin_actors=100)
    assert plan_moves(loads, COST, all_told).vacated == ()


def test_a_plan_of_many_actors_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "MOST_ACTORS", 3)
    loads = [crowd("busy", 10, 500.0)] + [
        actor(f"thin{i}", sample(f"{i}", 300.0)) for i in range(9)
    ]
    assert len(plan_moves([replace(a, rows=0) for a in loads], COST, RULES).vacated) == 3


@pytest.mark.parametrize("early_release", [True, False])
def test_where_only_the_end_counts_a_sample_goes_where_it_ends_soonest(early_release: bool) -> None:
    loads = [crowd("full", 32, 300.0), crowd("busy", 8, 100.0), crowd("idle", 1, 10.0)]
    rules = replace(RULES, time_weight=1.0, early_release=early_release)
    first = plan_moves(loads, COST, rules).moves[0]
    assert (first.source, first.target) == ("full", "idle")
