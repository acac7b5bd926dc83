"""What a rollout's plan says of itself."""

from msgspec.structs import replace

from controller.collector import Sample
from controller.dataset import Row
from controller.job import Prompt
from controller.learning import EngineLimits, PolicyState
from controller.planning import RolloutPlan, describe, plan_rollout
from controller.rollout_stats import RolloutStats
from rlhfless.messages import PrefillDone, RolloutDone
from rlhfless.spec import JobSpec
from scaling import cost_model
from scaling.cost_model import CostState
from tests.support.world import make_spec

PROMPTS = [Prompt(f"p{g}", Row("", {}, ""), (g, *range(400))) for g in range(4)]
SAMPLES = [Sample(f"0/{g}/{k}", g, PROMPTS[g].tokens, 0, 64) for g in range(4) for k in range(4)]
STATE = PolicyState(
    engine=EngineLimits(max_batch=7, kv_capacity=5000, kv_token_bytes=1000),
    costs=cost_model.observe(
        CostState(),
        [
            cost_model.decode(100, 400, 20_000, 1.0),
            cost_model.prefill(1000, 5.0),
            cost_model.kv_load(10**6, 0.002),
            cost_model.kv_publish(10**6, 0.002),
        ],
    ),
)


def plan(spec: JobSpec, state: PolicyState = STATE) -> RolloutPlan:
    return plan_rollout(spec, SAMPLES, PROMPTS, state, warm=3)


def test_the_chosen_alternative_is_marked() -> None:
    found = plan(make_spec(objective={"time_weight": 0.0, "max_slowdown": 1.0}))
    told = describe(found, RolloutStats(), 1.0)
    (chosen,) = (each for each in told["alternatives"] if each["chosen"])
    assert chosen["actors"] == told["actors"]
    assert chosen["seconds"] == told["outcome"]["predicted_s"]
    assert chosen["score"] > min(each["score"] for each in told["alternatives"])


def test_only_prompts_that_are_stored_can_be_loaded_by_samples_that_move() -> None:
    spread = {"strategy": "custom", "assignment": "random", "scale_actors": False}
    shared = plan(make_spec(scheduling=spread))
    assert shared.prefixes is not None
    assert shared.prefixes.load
    assert set(shared.load_s) == {g for g, cuts in enumerate(shared.prefixes.cuts) if cuts} != set()
    for changes in ({"prefix_cache": False}, {"dedup_prefill": False}):
        assert not plan(make_spec(scheduling=spread | changes)).load_s
    # Each prompt on an actor of its own, and none moves: nothing is stored.
    alone = make_spec(scheduling=spread | {"assignment": "group_affine"})
    assert not plan(alone).load_s
    moving = plan(alone, moved_by(STATE, 2.0))
    assert moving.prefixes is not None
    assert moving.prefixes.publish
    assert moving.load_s


def moved_by(state: PolicyState, moved: float) -> PolicyState:
    return PolicyState(engine=state.engine, costs=state.costs, moved_share=moved)


def test_actors_hold_what_the_engine_said_or_less() -> None:
    assert plan(make_spec()).capacity.max_batch == 7
    assert plan(make_spec()).capacity.kv_tokens == 5000
    assert plan(make_spec(rollout={"max_tokens": 64, "max_batch": 2})).capacity.max_batch == 2


def test_computed_and_saved_are_what_the_samples_needed() -> None:
    stats = RolloutStats()
    for _ in range(2):
        stats.add(RolloutDone(prefill_computed=2, prefill_saved=798, prefill_loaded=198))
    stats.add_prefill(PrefillDone(tokens_computed=99))
    assert stats.prefill_computed + stats.prefill_saved == 1600


def test_an_engine_that_stores_whole_blocks_is_asked_for_no_other() -> None:
    spread = {"strategy": "custom", "assignment": "random", "scale_actors": False}
    whole = replace(STATE.engine, kv_block_tokens=128)
    found = plan(make_spec(scheduling=spread), replace(STATE, engine=whole)).prefixes
    assert found is not None
    assert {end for cuts in found.cuts for end in cuts} == {384}
    # Prompts of 401 tokens fill no block of 512.
    larger = replace(STATE.engine, kv_block_tokens=512)
    short = plan(make_spec(scheduling=spread), replace(STATE, engine=larger))
    assert short.prefixes is not None
    assert not short.prefixes.load
    assert not any(short.prefixes.cuts)
    assert not short.load_s
