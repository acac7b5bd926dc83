"""What a user may get wrong before a simulation: each answer names the field and what would do."""

from pathlib import Path
from typing import Any

import pytest

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_file import load_spec, parse_spec
from simulator.cluster import Cluster, make_cluster
from simulator.model_shape import load_shape
from simulator.room import with_asked_accelerators
from simulator.scenario_file import make_scenario
from simulator.strategies import apply

JOB = load_spec(str(Path(__file__).parents[3] / "examples" / "simulate" / "qwen2.5-7b-grpo.yaml"))
POOL = {"accelerator": "L40S", "per_node": 8}
BOTH = {"fast": {"accelerator": "H100"}, "slow": {"accelerator": "L40S"}}


def changed(**sections: dict[str, Any]) -> JobSpec:
    raw = JOB.model_dump()
    for section, values in sections.items():
        raw[section] |= values
    return parse_spec(raw)


def cluster(pool: dict[str, Any] | None = None, **fields: Any) -> Cluster:
    return make_cluster({"name": "ours", "pools": {"gpus": {**POOL, **(pool or {})}}, **fields})


def test_a_model_that_does_not_fit_the_accelerator() -> None:
    machines = cluster()
    shape = load_shape("Qwen3-235B-A22B")
    with pytest.raises(UserError) as raised:
        machines.plan_instance("rollout", machines.pools["gpus"], shape, 4096)
    assert raised.value.param == "pools.gpus"
    assert raised.value.detail.endswith("does not fit on L40S; it fits on 4 x H200")


def test_a_cluster_without_the_asked_gpu() -> None:
    with pytest.raises(UserError) as raised:
        apply("rlhfless", changed(rollout={"accelerator": "H100"}), cluster())
    assert raised.value.param == "rollout.accelerator"
    assert raised.value.detail == (
        "rollout.accelerator: cluster ours has no H100 for rollout; it has L40S"
    )
    assert raised.value.hint == "--set rollout.accelerator=L40S, or a cluster with H100"
    with pytest.raises(UserError, match=r"training.accelerator: there is no accelerator H10; did"):
        apply("static", changed(training={"accelerator": "H10"}), cluster())
    cores = make_cluster({"name": "cores", "pools": {"cores": {"accelerator": "cpu-core"}}})
    with pytest.raises(UserError, match="cluster cores has no cuda for rollout; it has cpu-core"):
        apply("rlhfless", JOB, cores)


def test_functions_run_on_the_accelerator_they_ask_for() -> None:
    job = changed(rollout={"accelerator": "l40s"}, training={"accelerator": "H100"})
    found = with_asked_accelerators(job, make_cluster({"pools": BOTH}))
    assert [pool.name for pool in found.pools_for("rollout")] == ["slow"]
    assert [pool.name for pool in found.pools_for("training")] == ["fast"]
    assert [pool.name for pool in found.pools_for("reference")] == ["fast", "slow"]
    assert with_asked_accelerators(job, found) == found
    placed = make_cluster({"pools": BOTH, "placements": {"rollout": {"pools": ["fast"]}}})
    with pytest.raises(UserError, match="has no l40s for rollout; it has H100"):
        with_asked_accelerators(job, placed)
    anything = changed(rollout={"accelerator": "cpu"}, reference={"accelerator": "cpu"})
    free = with_asked_accelerators(anything, make_cluster({"pools": BOTH}))
    assert [pool.name for pool in free.pools_for("rollout")] == ["fast", "slow"]


def test_an_empty_pool() -> None:
    with pytest.raises(UserError, match=r"pools.gpus.nodes: an empty pool: give it at least one"):
        cluster({"nodes": 0})
    with pytest.raises(UserError, match=r"pools.gpus.per_node: input should be greater than 0"):
        cluster({"per_node": 0})


def test_a_negative_price() -> None:
    for field in ("price_usd_per_hour", "spot_price_usd_per_hour"):
        with pytest.raises(UserError, match=rf"pools.gpus.{field}: .*\(got -1\)") as raised:
            cluster({field: -1})
        assert raised.value.param == f"pools.gpus.{field}"


def test_spot_where_no_node_is_preemptible() -> None:
    with pytest.raises(UserError, match="use_spot needs spot: say which nodes are preemptible"):
        cluster({"use_spot": True})


def test_lengths_beyond_the_context(tmp_path: Path) -> None:
    job = changed(model={"path": "Llama-2-7B"})
    workload = tmp_path / "workload.yaml"
    workload.write_text("{prompt_tokens: 1024, lengths: {median: 500, cap: 8192}}")
    with pytest.raises(UserError) as raised:
        make_scenario(job, workload_path=str(workload))
    assert raised.value.param == "workload.lengths.cap"
    assert raised.value.detail.endswith("at most 3072 would do")
    with pytest.raises(UserError, match=r"rollout.max_tokens: 5000 fill the context") as raised:
        make_scenario(changed(model={"path": "Llama-2-7B"}, rollout={"max_tokens": 5000}))
    assert raised.value.hint == "less than 4096 less the longest prompt would do"
