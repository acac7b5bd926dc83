"""The prefix planner: its promises over random prompts and costs, and the cases it is made for."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from prefix_cache.plan import PrefixPlan, break_even_tokens, plan_prefixes
from prefix_cache.segments import Demand, PrefixCosts, choose
from prefix_cache.tree import build_tree

SECONDS = st.sampled_from([0.0, 1e-6, 1e-4, 1e-2])
COSTS = st.builds(
    PrefixCosts,
    prefill_token_s=SECONDS,
    prefill_call_s=SECONDS,
    load_call_s=SECONDS,
    load_byte_s=st.sampled_from([0.0, 1e-9, 1e-6]),
    publish_byte_s=st.sampled_from([0.0, 1e-9, 1e-6]),
    bytes_per_token=st.sampled_from([1, 100, 50_000]),
    publish_call_s=SECONDS,
    request_s=SECONDS,
)
PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), min_size=1, max_size=8)
MIB = 1 << 20
LARGE = PrefixCosts(
    prefill_token_s=3e-3,
    prefill_call_s=0.02,
    load_call_s=1e-3,
    load_byte_s=1e-9,
    publish_byte_s=2e-9,
    bytes_per_token=46_080,
)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    prompts = draw(PROMPTS)
    actor = st.lists(st.integers(0, len(prompts) - 1), max_size=6)
    return prompts, draw(st.lists(actor, min_size=1, max_size=4))


def words(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(50_000) for _ in range(count)]


def check(
    plan: PrefixPlan, prompts: list[list[int]], actors: list[list[int]], moved: float = 0.0
) -> None:
    for tokens, cuts in zip(prompts, plan.cuts, strict=True):
        assert list(cuts) == sorted(set(cuts))
        assert all(0 < cut < len(tokens) for cut in cuts)
    plain = plan.alternatives[0]
    assert plan.seconds <= plain.seconds
    assert plan.wall_s <= plain.wall_s or moved
    assert plan.tokens_saved == plain.tokens_computed - plan.tokens_computed
    needed = {p for actor in actors for p in actor}
    assert plain.tokens_computed == sum(len(prompts[p]) for a in actors for p in set(a))
    for call in plan.prefill:
        for prompt, cuts in zip(call.prompts, call.cuts, strict=True):
            assert prompt in needed
            assert plan.cuts[prompt][: len(cuts)] == cuts, "stored under a name nobody asks for"
    assert len(plan.prefill) <= len(actors)
    assert (plan.stored_bytes > 0) == plan.load == bool(plan.prefill or plan.publish)
    assert plan.reason


@settings(deadline=None, max_examples=60)
@given(workloads(), COSTS, st.integers(1, 6), st.sampled_from([0, 500, 10**9]), SECONDS)
def test_a_plan_is_valid_and_never_worse_than_recompute(
    workload: tuple[list[list[int]], list[list[int]]],
    costs: PrefixCosts,
    block: int,
    max_bytes: int,
    moved: float,
) -> None:
    prompts, actors = workload
    plan = plan_prefixes(
        prompts, actors, costs, block_tokens=block, max_bytes=max_bytes, moved=100 * moved
    )
    check(plan, prompts, actors, moved)
    assert plan.stored_bytes <= max_bytes


@settings(deadline=None, max_examples=60)
@given(workloads(), COSTS, st.integers(1, 6), st.lists(st.integers(0, 10**6), min_size=2))
def test_more_room_never_gives_a_worse_plan(
    workload: tuple[list[list[int]], list[list[int]]],
    costs: PrefixCosts,
    block: int,
    rooms: list[int],
) -> None:
    seconds = [
        plan_prefixes(*workload, costs, block_tokens=block, max_bytes=room).seconds
        for room in sorted(rooms)
    ]
    assert seconds == sorted(seconds, reverse=True)


@settings(deadline=None, max_examples=60)
@given(workloads(), COSTS, st.integers(3, 8), st.sampled_from([0.0, 0.5]))
def test_the_choice_of_cuts_is_the_best_there_is(
    workload: tuple[list[list[int]], list[list[int]]],
    costs: PrefixCosts,
    block: int,
    moved: float,
) -> None:
    """Against every assignment of none, share, store to the nodes of small trees."""
    prompts, actors = workload[0][:3], [[p for p in a if p < 3] for a in workload[1]]
    actors = [[p for p in actor if p < len(prompts)] for actor in actors]
    tree = build_tree(prompts, block)
    if len(tree.nodes) > 5:
        return
    demand = Demand(tree, prompts, actors, costs, moved)

    def cost(kinds: tuple[str, ...]) -> float:
        total = 0.0
        for node, kind in enumerate(kinds):
            if kind != "none":
                tokens = demand.end(node) - demand.end(above(node, kinds))
                part = demand.store_cost if kind == "store" else demand.share_cost
                total += part(node, tokens)
        for prompt in range(len(prompts)):
            last = tree.last[prompt]
            cut = last if last >= 0 and kinds[last] != "none" else above(last, kinds)
            total += demand.weight(prompt) * demand.compute_s(
                len(prompts[prompt]) - demand.end(cut)
            )
        return total

    def above(node: int, kinds: tuple[str, ...]) -> int:
        while node >= 0:
            node = tree.nodes[node].parent
            if node >= 0 and kinds[node] != "none":
                break
        return node

    def allowed(kinds: tuple[str, ...]) -> bool:
        for node, kind in enumerate(kinds):
            up = above(node, kinds)
            if kind == "store" and not demand.storable(node):
                return False
            if kind == "store" and up >= 0 and kinds[up] == "share":
                return False
        return True

    def every(count: int) -> list[tuple[str, ...]]:
        if not count:
            return [()]
        return [(*rest, kind) for rest in every(count - 1) for kind in ("none", "share", "store")]

    choice = choose(demand)
    chosen = tuple(
        "store" if n in choice.stored else "share" if n in choice.shared else "none"
        for n in range(len(tree.nodes))
    )
    assert allowed(chosen)
    best = min(cost(kinds) for kinds in every(len(tree.nodes)) if allowed(kinds))
    assert math.isclose(cost(chosen), best, rel_tol=1e-9, abs_tol=1e-12)


def test_a_group_over_several_actors_is_computed_once() -> None:
    prompts = [words(n, 400) for n in range(8)]
    actors = [list(range(8))] * 4
    plan = plan_prefixes(prompts, actors, LARGE, block_tokens=16, max_bytes=1 << 30)
    check(plan, prompts, actors)
    assert plan.cuts == ((399,),) * 8
    assert sorted(p for call in plan.prefill for p in call.prompts) == list(range(8))
    assert [len(call.prompts) for call in plan.prefill] == [2, 2, 2, 2]
    assert plan.tokens_computed == 8 * 399 + 4 * 8
    assert plan.tokens_loaded == 4 * 8 * 399
    assert not plan.publish
    assert plan.seconds < plan.alternatives[0].seconds / 3


def test_short_prompts_are_not_worth_a_load() -> None:
    costs = replace(LARGE, prefill_token_s=1e-5)
    prompts = [words(n, 40) for n in range(8)]
    plan = plan_prefixes(prompts, [list(range(8))] * 4, costs, block_tokens=16, max_bytes=1 << 30)
    assert plan.cuts == ((),) * 8
    assert not plan.prefill
    assert not plan.load


def test_what_only_one_actor_needs_is_not_stored() -> None:
    prompts = [words(n, 400) for n in range(4)]
    actors = [[0, 1], [2, 3]]
    plan = plan_prefixes(prompts, actors, LARGE, block_tokens=16, max_bytes=1 << 30)
    assert plan.cuts == ((),) * 4
    assert plan.stored_bytes == 0
    assert "no two actors" in plan.reason


def test_owners_publish_what_is_likely_to_move() -> None:
    prompts = [words(n, 400) for n in range(4)]
    actors = [[0, 1], [2, 3]]
    plan = plan_prefixes(prompts, actors, LARGE, block_tokens=16, max_bytes=1 << 30, moved=0.5)
    check(plan, prompts, actors, 0.5)
    assert plan.publish
    assert plan.load
    assert not plan.prefill
    assert plan.cuts == ((399,),) * 4


def test_a_template_is_computed_once_by_each_actor_rather_than_waited_for() -> None:
    template = words(99, 320)
    prompts = [template + words(n, 64) for n in range(8)]
    actors = [[0, 1], [2, 3], [4, 5], [6, 7]]
    plan = plan_prefixes(prompts, actors, LARGE, block_tokens=16, max_bytes=1 << 30)
    check(plan, prompts, actors)
    assert plan.cuts == ((320,),) * 8
    assert plan.tokens_computed == 4 * 320 + 8 * 64
    assert plan.stored_bytes == 0


def test_room_goes_to_the_most_valuable_first() -> None:
    prompts = [words(n, 300) for n in range(4)]
    actors = [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2], [0, 1], [0]]
    size = 299 * LARGE.bytes_per_token
    needed = []
    for room in range(5):
        plan = plan_prefixes(prompts, actors, LARGE, block_tokens=16, max_bytes=room * size)
        check(plan, prompts, actors)
        needed.append([bool(cuts) for cuts in plan.cuts])
    assert needed[4] == [True] * 4
    for room in (1, 2, 3):
        assert needed[room] == sorted(needed[room], reverse=True)
        assert sum(needed[room]) <= room


def test_break_even() -> None:
    costs = PrefixCosts(
        prefill_token_s=1e-3,
        prefill_call_s=0.0,
        load_call_s=1e-3,
        load_byte_s=1e-8,
        publish_byte_s=1e-8,
        bytes_per_token=1000,
    )
    assert math.isclose(break_even_tokens(costs, 4), 4e-3 / (3e-3 - 5e-5))
    slow = replace(costs, publish_call_s=2e-3)
    assert math.isclose(break_even_tokens(slow, 4), 6e-3 / (3e-3 - 5e-5))
    assert math.isinf(break_even_tokens(costs, 1))
    assert math.isinf(break_even_tokens(replace(costs, load_byte_s=1e-6), 4))
