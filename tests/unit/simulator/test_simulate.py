"""The real orchestrator on simulated clusters: what must hold whatever the numbers are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from simulator.cluster import Cluster, make_cluster
from simulator.drafting import Drafting
from simulator.report.contents import Report
from simulator.report.json_file import dump, dump_spans
from simulator.result import Simulation
from simulator.sampling import FEWEST, choose_steps, fewer_prompts
from simulator.scenario import Scenario
from simulator.scenario_file import make_scenario
from simulator.simulate import Options, simulate
from simulator.strategies import apply
from simulator.workload import LengthModel


def job(**changes: Any) -> JobSpec:
    raw: dict[str, Any] = {
        "name": "job",
        "model": {"path": "Qwen2.5-3B", "dtype": "bfloat16"},
        "dataset": {"path": "nowhere.jsonl"},
        "rewards": [{"python": "rewards.py:f"}],
        "algorithm": {"group_size": 8, "kl": {"coefficient": 0.001}},
        "rollout": {"max_tokens": 1024, "max_instances": 4, "accelerator": "cuda"},
        "reference": {"accelerator": "cuda"},
        "training": {"prompts_per_step": 8, "steps": 4, "accelerator": "cuda"},
    }
    for key, value in changes.items():
        raw[key] = raw.get(key, {}) | value if isinstance(value, dict) else value
    return JobSpec.model_validate(raw)


def cluster(nodes: int = 1, pool: dict[str, Any] | None = None, **more: Any) -> Cluster:
    gpus = {"accelerator": "H100", "per_node": 4, "nodes": nodes, **(pool or {})}
    raw = {"pools": {"gpus": gpus}, "placements": {"training": {"data_parallel": 4}}, **more}
    return make_cluster(raw)


def scenario(spec: JobSpec, **lengths: Any) -> Scenario:
    made = make_scenario(spec)
    model = LengthModel(median=200, cap=spec.rollout.max_tokens, between=0.5, within=0.4)
    return replace(made, workload=replace(model, **lengths))


def run(spec: JobSpec | None = None, on: Cluster | None = None, **options: Any) -> Simulation:
    spec = spec or job()
    return simulate(spec, on or cluster(), scenario(spec), options=Options(**options))


def held_at_once(found: Simulation) -> int:
    """The most accelerators held at any moment of the window."""
    changes = sorted(
        change
        for span in found.spans
        for change in ((span.start_s, span.accelerators), (span.end_s, -span.accelerators))
    )
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


@pytest.mark.parametrize("strategy", ["static", "rlhfless", "rlhfless+time+overlap"])
def test_all_steps_are_run_and_all_seconds_are_accounted_for(strategy: str) -> None:
    spec, on = apply(strategy, job(), cluster())
    found = run(spec, on)
    assert [step.step for step in found.simulated] == [1, 2, 3, 4]
    assert sum(step.seconds for step in found.simulated) <= found.seconds
    samples = 64
    assert all(step.tokens >= samples for step in found.simulated)
    assert held_at_once(found) <= 4
    for use in found.usage.values():
        assert use.held_s <= use.accelerators * found.seconds * 4 or use.accelerators == 0
    assert found.held_s <= 4 * found.seconds * (1 + 1e-9)


def test_a_serverful_framework_holds_the_cluster_throughout() -> None:
    # From the first step on: before it, instances come one after the other.
    spec, on = apply("static", job(), cluster())
    found = run(spec, on)
    begin, end = found.window_s
    held = sum(
        span.accelerators * (min(span.end_s, end) - max(span.start_s, begin))
        for span in found.spans
    )
    assert held == pytest.approx(4 * (end - begin), rel=0.01)


def test_the_same_seed_gives_the_same_result_to_the_byte() -> None:
    noisy = cluster(variation={"noise": 0.1, "straggler_share": 0.3})
    first, again, other = (Report((run(on=noisy, seed=seed),)) for seed in (3, 3, 4))
    assert dump(first) == dump(again)
    assert dump_spans(first) == dump_spans(again)
    assert dump_spans(first) != dump_spans(other)


def test_every_strategy_generates_the_same_responses() -> None:
    tokens = set()
    for strategy in ("static", "rlhfless", "disaggregated"):
        spec, on = apply(strategy, job(), cluster(nodes=2))
        tokens.add(tuple(step.tokens for step in run(spec, on).simulated))
    assert len(tokens) == 1


def test_prompt_tokens_are_those_that_samples_needed_whoever_computed_them() -> None:
    tokens = set()
    for strategy in ("static", "static+dedup_prefill"):
        found = run(*apply(strategy, job(), cluster()))
        tokens.add(tuple(step.prompt_tokens for step in found.simulated))
    assert len(tokens) == 1


def test_stragglers_cost_time() -> None:
    slow = cluster(variation={"straggler_share": 1.0, "straggler_factor": 3.0})
    plain, slowed = (run(on=each).simulated[-1] for each in (cluster(), slow))
    assert slowed.rollout_s > 2 * plain.rollout_s
    assert slowed.train_s == pytest.approx(3 * plain.train_s)


def test_drafting_saves_time_where_drafts_are_accepted() -> None:
    spec = job()
    given = scenario(spec)
    plain = simulate(spec, cluster(), given)
    drafted = simulate(spec, cluster(), replace(given, drafting=Drafting(4, 0.8)))
    useless = simulate(spec, cluster(), replace(given, drafting=Drafting(4, 0.0)))
    assert drafted.simulated[-1].rollout_s < plain.simulated[-1].rollout_s
    assert useless.simulated[-1].rollout_s == pytest.approx(plain.simulated[-1].rollout_s)


def test_spot_nodes_come_and_go_and_the_job_ends() -> None:
    spot = {"share": 0.5, "preemptions_per_hour": 60, "notice_s": 5, "return_s": 30}
    on = cluster(nodes=4, pool={"spot": spot, "use_spot": True})
    found = run(job(rollout={"max_instances": 12}), on)
    assert found.preemptions > 0
    assert len(found.simulated) == 4
    assert any(span.spot for span in found.spans)
    assert all(not span.spot for span in found.spans if span.function == "training")
    calm = run(job(rollout={"max_instances": 12}), cluster(nodes=4, pool={"spot": spot}))
    assert calm.preemptions == 0
    assert not any(span.spot for span in calm.spans)


def test_spot_is_cheaper_by_the_second() -> None:
    prices = {"price_usd_per_hour": 4.0, "spot_price_usd_per_hour": 1.0}
    spot = {"share": 0.5}
    on = cluster(nodes=2, pool={"spot": spot, "use_spot": True, **prices})
    found = run(on=on)
    assert found.usd is not None
    assert found.usd_spot == pytest.approx(found.held_s / 3600)
    assert found.usd_on_demand == pytest.approx(4 * found.held_s / 3600)
    assert found.usd_spot < found.usd < found.usd_on_demand


def test_an_unknown_price_is_unknown() -> None:
    on = cluster(nodes=2, pool={"accelerator": "L4", "per_node": 8})
    on = replace(on, placements={})
    assert run(job(), on).usd is None


def test_accelerators_that_are_not_shared_must_suffice_for_everyone() -> None:
    for nodes, wrong in ((1, "training"), (2, "rollout")):
        with pytest.raises(UserError, match=f"{wrong}.max_instances: . do not fit") as raised:
            run(on=cluster(nodes=nodes, sharing="exclusive"))
        assert raised.value.param == f"{wrong}.max_instances"
    apart = cluster(nodes=3, sharing="exclusive")
    assert len(run(on=apart).simulated) == 4


def test_a_few_steps_stand_for_many() -> None:
    spec = job(training={"steps": 40, "checkpoint_every": 10})
    given = scenario(spec, growth=0.01, growth_steps=40)
    whole = simulate(spec, cluster(), given)
    few = simulate(spec, cluster(), given, options=Options(max_steps=10))
    assert len(few.simulated) == 10
    assert sum(step.stands_for for step in few.simulated) == pytest.approx(40)
    assert few.steps == whole.steps == 40
    assert few.seconds == pytest.approx(whole.seconds, rel=0.05)
    assert few.held_s == pytest.approx(whole.held_s, rel=0.15)  # policies go on learning
    assert few.tokens == pytest.approx(whole.tokens, rel=0.05)


@pytest.mark.parametrize("steps", [1, 5, 6, 7, 50, 1000])
@pytest.mark.parametrize("most", [None, 1, 6, 12])
@pytest.mark.parametrize("every", [1, 2, 10, 5000])
def test_chosen_steps_add_up_to_the_job(steps: int, most: int | None, every: int) -> None:
    chosen = choose_steps(steps, most, every)
    assert len(chosen.of) == len(chosen.weights) <= max(FEWEST, most or steps)
    assert sum(chosen.weights) == pytest.approx(steps)
    assert chosen.of[0] == 0
    assert chosen.of[-1] == steps - 1
    assert list(chosen.of) == sorted(chosen.of)
    assert all(weight > 0 for weight in chosen.weights)


def test_prompts_are_visited_as_often_as_in_the_whole_job() -> None:
    chosen = choose_steps(100, 10, 10)
    assert fewer_prompts(1000, 10, chosen) == 1000, "one epoch: nobody comes twice"
    assert fewer_prompts(100, 10, chosen) == 10
    assert fewer_prompts(250, 10, chosen) == 25


def test_evaluations_that_are_left_out_are_counted() -> None:
    changes: dict[str, Any] = {
        "training": {"steps": 60},
        "evaluation": {"dataset": {"path": "nowhere.jsonl"}, "every": 5},
    }
    spec = job(**changes)
    whole, few = run(spec), run(spec, max_steps=10)
    assert few.seconds == pytest.approx(whole.seconds, rel=0.08)


def test_responses_of_a_single_token_are_jobs_too() -> None:
    spec = job(rollout={"max_tokens": 16})
    found = simulate(spec, cluster(), scenario(spec, median=1, between=0, within=0))
    assert all(step.longest == 1 for step in found.simulated)
