from pathlib import Path

import pytest

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_file import load_spec, parse_spec
from simulator.cluster import Cluster, load_cluster, make_cluster
from simulator.model_shape import load_shape
from simulator.room import capacity, on_accelerators, room_notes, trainable_share
from simulator.strategies import BASES, TECHNIQUES, apply, check_names

EXAMPLES = Path(__file__).parents[3] / "examples"
JOB = load_spec(str(EXAMPLES / "simulate" / "qwen2.5-7b-grpo.yaml"))
L40S = load_cluster(str(EXAMPLES / "clusters" / "l40s-16.yaml"))
MIXED = load_cluster(str(EXAMPLES / "clusters" / "mixed-spot.yaml"))


def spec(name: str, job: JobSpec = JOB, cluster: Cluster = L40S) -> JobSpec:
    return apply(name, job, cluster)[0]


def changed(**sections: dict[str, object]) -> JobSpec:
    raw = JOB.model_dump()
    for section, values in sections.items():
        raw[section] |= values
    return parse_spec(raw)


def problem(name: str, job: JobSpec = JOB, cluster: Cluster = L40S) -> str:
    with pytest.raises(UserError) as raised:
        apply(name, job, cluster)
    return raised.value.detail


def test_bases_set_the_switches_and_leave_the_rest_of_the_job() -> None:
    for name in ("static", "disaggregated", "rlhfless"):
        found = spec(name).scheduling
        assert found.strategy == ("rlhfless" if name == "rlhfless" else "static")
        assert found.migrate == found.dedup_prefill == (name == "rlhfless")
    assert spec("static").model_copy(update={"scheduling": JOB.scheduling}) == JOB
    assert apply("job", JOB, L40S) == (JOB, L40S)
    assert apply("rlhfless", JOB, L40S) == (JOB, L40S)


def test_a_modifier_changes_one_technique() -> None:
    static, rlhfless = spec("static").scheduling, spec("rlhfless").scheduling
    for technique in TECHNIQUES.keys() - {"overlap", "spot", "prefix_cache", "dedup_prefill"}:
        on = spec(f"static+{technique}").scheduling
        assert on == static.model_copy(update={"strategy": "custom", technique: True})
        off = spec(f"rlhfless-{technique}").scheduling
        assert off == rlhfless.model_copy(update={"strategy": "custom", technique: False})
    assert spec("static+sorted").scheduling.assignment == "sorted"
    assert spec("rlhfless+cost").objective.time_weight == 0
    assert spec("rlhfless+time").objective.time_weight == 1


def test_techniques_come_with_what_they_need_and_go_with_it() -> None:
    found = spec("static+prefix_cache").scheduling
    assert found.prefix_cache
    assert found.dedup_prefill
    assert not spec("rlhfless-dedup_prefill").scheduling.prefix_cache
    found = spec("static+overlap")
    assert found.training.overlap
    assert found.scheduling.stream_scoring
    assert not spec("rlhfless+overlap-stream_scoring").training.overlap


def test_later_changes_win() -> None:
    assert not spec("static+migrate-migrate").scheduling.migrate
    assert spec("static+sorted+balanced").scheduling.assignment == "balanced"


def test_the_jobs_own_switches_are_a_strategy() -> None:
    job = changed(scheduling={"strategy": "custom", "migrate": False})
    assert spec("job", job) == job
    assert spec("job+sorted", job).scheduling.assignment == "sorted"
    assert not spec("job+sorted", job).scheduling.migrate
    assert spec("rlhfless", job) == JOB


def test_static_scheduling_begins_no_update_early() -> None:
    job = changed(training={"overlap": True})
    assert not spec("static", job).training.overlap
    assert spec("rlhfless", job).training.overlap


def test_spot_is_used_where_rollout_may_run_and_only_if_asked() -> None:
    _, cluster = apply("rlhfless", JOB, MIXED)
    assert not any(pool.use_spot for pool in cluster.pools.values())
    _, cluster = apply("rlhfless+spot", JOB, MIXED)
    assert [name for name, pool in cluster.pools.items() if pool.use_spot] == ["rollout"]
    assert not apply("rlhfless+spot-spot", JOB, MIXED)[1].pools["rollout"].use_spot
    assert "has no preemptible nodes for rollout; pools.l40s.spot says" in problem("static+spot")


def test_static_functions_take_turns_on_the_accelerators() -> None:
    exclusive = make_cluster({"pools": {"gpus": {"accelerator": "H100"}}, "sharing": "exclusive"})
    assert apply("static", JOB, exclusive)[1].sharing == "time_shared"
    assert apply("rlhfless", JOB, exclusive)[1].sharing == "exclusive"


def test_disaggregated_functions_have_accelerators_of_their_own() -> None:
    job, cluster = apply("disaggregated", JOB, L40S)
    assert cluster.sharing == "exclusive"
    training = cluster.placements["training"].data_parallel
    assert (training, job.reference.max_instances, job.rollout.max_instances) == (8, 2, 6)
    few = changed(rollout={"max_instances": 4})
    assert spec("disaggregated", few).rollout.max_instances == 4


def test_disaggregated_training_keeps_a_pool_that_rollout_can_do_without() -> None:
    job, cluster = apply("disaggregated", JOB, MIXED)
    assert cluster.placements["rollout"].pools == ["rollout"]
    assert cluster.placements["training"].pools == ["reserved"]
    assert cluster.placements["training"].data_parallel == 7  # one is the reference's
    assert job.rollout.max_instances == 16


@pytest.mark.parametrize("name", ["l40s-16", "h100-8", "h100-160", "mixed-spot"])
def test_disaggregated_fits(name: str) -> None:
    given = load_cluster(str(EXAMPLES / "clusters" / f"{name}.yaml"))
    job, cluster = apply("disaggregated", JOB, given)
    placed = cluster.placements
    training = (placed["training"].data_parallel or 0) * (placed["training"].tensor_parallel or 1)
    taken = training + job.reference.max_instances + job.rollout.max_instances
    assert taken <= sum(pool.accelerators for pool in cluster.pools.values())
    assert min(training, job.reference.max_instances, job.rollout.max_instances) >= 1


def test_a_cluster_too_small_to_be_divided_is_refused() -> None:
    small = make_cluster({"pools": {"gpus": {"accelerator": "H100", "per_node": 3}}})
    with pytest.raises(UserError) as raised:
        apply("disaggregated", JOB, small)
    assert "is too small in pool gpus: training needs" in raised.value.detail
    assert raised.value.param == "pools.gpus.nodes"
    assert raised.value.hint == "try pools.gpus.nodes=2, or the strategy static"


def test_unknown_names_are_answered_by_the_nearest() -> None:
    assert problem("rlhfles") == "strategy: there is no strategy rlhfles; did you mean rlhfless?"
    assert problem("static+migrat").endswith("no technique migrat; did you mean migrate?")
    assert "there is no technique ''; known: auto" in problem("static+")
    assert "sorted cannot be switched off" in problem("rlhfless-sorted")
    for name in BASES:
        assert f"{name}" in problem("")
    check_names(["static", "rlhfless+spot"])
    with pytest.raises(UserError, match="did you mean static"):
        check_names(["rlhfless", "statik"])


def test_a_technique_the_job_does_not_allow_is_refused() -> None:
    job = changed(training={"idle_timeout_s": 0})
    assert problem("rlhfless+overlap", job).startswith("strategy rlhfless+overlap: job: training.o")


def test_room_is_what_the_pools_hold() -> None:
    shape = load_shape("Qwen2.5-7B", "bfloat16")
    assert capacity("rollout", JOB, L40S, shape) == 16
    assert capacity("rollout", JOB, MIXED, shape) == 40
    assert room_notes(JOB, L40S, shape) == []
    few = changed(rollout={"max_instances": 2}, reference={"max_instances": 20})
    assert room_notes(few, L40S, shape) == [
        "rollout.max_instances is 2; l40s-16 could hold 16 (--set rollout.max_instances=16)",
        "reference.max_instances is 20, but l40s-16 holds 16 instances of reference",
    ]


def test_rewards_without_a_model_need_no_accelerator() -> None:
    assert on_accelerators(JOB) == ("rollout", "reference", "training")
    raw = JOB.model_dump() | {"rewards": [{"model": "Skywork/some-reward-model"}]}
    assert "reward" in on_accelerators(parse_spec(raw))
    # With a scorer more, rollout has less.
    assert spec("disaggregated", parse_spec(raw | {"reward": {"max_instances": 4}})).rollout == (
        JOB.rollout.model_copy(update={"max_instances": 4})
    )


def test_less_is_trained_with_adapters_and_top_layers() -> None:
    shape = load_shape("Qwen2.5-7B")
    assert trainable_share(JOB, shape) == 1
    lora = changed(training={"trainable": "lora"})
    assert 0 < trainable_share(lora, shape) < 0.01
    top = changed(training={"trainable": "top_layers", "top_layers": 7})
    assert 0.15 < trainable_share(top, shape) < 0.25
