from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhfless.errors import UserError
from simulator.cluster import Cluster, load_cluster, make_cluster
from simulator.model_shape import load_shape

EXAMPLES = Path(__file__).parents[3] / "examples" / "clusters"
POOL = {"accelerator": "L40S", "per_node": 8, "nodes": 2}


def cluster(pool: dict[str, Any] | None = None, **fields: Any) -> Cluster:
    return make_cluster({"pools": {"gpus": {**POOL, **(pool or {})}}, **fields})


def problem(make: Callable[[], object]) -> str:
    with pytest.raises(UserError) as raised:
        make()
    return raised.value.detail


@pytest.mark.parametrize(
    ("name", "count", "model", "tensor_parallel"),
    [
        ("l40s-16", 16, "Qwen2.5-7B", 1),
        ("h100-8", 8, "Qwen2.5-7B", 1),
        ("h100-160", 160, "Llama-2-70B", 2),
        ("mixed-spot", 40, "Qwen2.5-7B", 1),
        ("this-machine", 2, "SmolLM2-135M", 1),
    ],
)
def test_example_clusters_run_the_models_they_are_for(
    name: str, count: int, model: str, tensor_parallel: int
) -> None:
    found = load_cluster(str(EXAMPLES / f"{name}.yaml"))
    assert found.name == name
    assert sum(pool.accelerators for pool in found.pools.values()) == count
    shape = load_shape(model, "float32" if name == "this-machine" else None)
    pool = found.pools_for("rollout")[0]
    assert found.plan_instance("rollout", pool, shape, 2048) == tensor_parallel
    training = found.pools_for("training")[0]
    smaller = load_shape("Qwen2.5-7B") if model == "Llama-2-70B" else shape
    assert found.plan_training(training, smaller, 4096).accelerators <= training.accelerators


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == {
        "l40s-16",
        "h100-8",
        "h100-160",
        "mixed-spot",
        "this-machine",
    }


def test_the_smallest_cluster_is_one_pool() -> None:
    found = make_cluster({"pools": {"one": {"accelerator": "h100"}}})
    pool = found.pools["one"]
    assert (pool.accelerator_name, pool.accelerators, pool.spot_nodes) == ("H100", 1, 0)
    assert pool.on_demand_usd_per_hour == 6.88
    assert pool.cold_start == found.catalog.cold_start("warm_node")


def test_prices_come_from_the_file_then_the_facts_and_may_be_unknown() -> None:
    pool = cluster({"price_usd_per_hour": 2.5}).pools["gpus"]
    assert (pool.usd_per_hour(spot=False), pool.usd_per_hour(spot=True)) == (2.5, 1.8)
    unknown = cluster({"accelerator": "L4"}).pools["gpus"]
    assert (unknown.usd_per_hour(spot=False), unknown.usd_per_hour(spot=True)) == (None, None)
    free = cluster({"accelerator": "L4", "spot_price_usd_per_hour": 0}).pools["gpus"]
    assert (free.usd_per_hour(spot=False), free.usd_per_hour(spot=True)) == (None, 0)


def test_overrides_reach_the_devices_and_links() -> None:
    changed = {"memory_gib": 24, "link": "nvlink3", "network": "ib-400", "cold_start": "no_cache"}
    pool, plain = cluster(changed).pools["gpus"], cluster().pools["gpus"]
    assert pool.accelerator.memory_gib == 24
    assert pool.fabric.link.gb_per_s == 300
    assert pool.fabric.network.gb_per_s == 50
    assert pool.cold_start.compile_s > plain.cold_start.compile_s == 0
    assert plain.accelerator.memory_gib == 44.4
    slower = cluster(cold_start="fresh_node").pools["gpus"]
    assert slower.cold_start.node_s > 0


def test_spot_nodes_are_a_share_of_the_pool() -> None:
    assert cluster({"nodes": 4, "spot": {"share": 0.75}}).pools["gpus"].spot_nodes == 3
    assert cluster({"spot": {}}).pools["gpus"].spot_nodes == 2


def test_a_spot_trace_is_read(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("seconds,nodes\n0,2\n60.5,1\n\n120,2\n")
    raw = {"pools": {"gpus": {**POOL, "spot": {"trace": "trace.csv"}}}}
    found = make_cluster(raw, str(tmp_path)).pools["gpus"]
    assert found.availability == ((0, 2), (60.5, 1), (120, 2))
    for text, expected in (
        ("seconds,nodes\n", "holds no line of seconds,nodes"),
        ("0,2\n5,x\n", "line 2: '5,x'"),
        ("5,2\n4,1\n", "times must be finite and must not fall"),
        ("nan,2\n", "times must be finite"),
        ("5,-2\n", "must not fall, nor anything be negative"),
    ):
        (tmp_path / "trace.csv").write_text(text)
        assert expected in problem(lambda: make_cluster(raw, str(tmp_path)))
    (tmp_path / "trace.csv").unlink()
    missing = problem(lambda: make_cluster(raw, str(tmp_path)))
    assert missing.startswith("pools.gpus.spot.trace: cannot read")


def test_facts_of_the_users_own_are_relative_to_the_cluster(tmp_path: Path) -> None:
    facts = {"accelerators": {"H20": {"like": "H100", "memory_gib": 95, "source": "mine"}}}
    (tmp_path / "facts.yaml").write_text(yaml.safe_dump(facts))
    path = tmp_path / "ours.yaml"
    pools = {"h20": {"accelerator": "H20"}}
    path.write_text(yaml.safe_dump({"hardware": ["facts.yaml"], "pools": pools}))
    found = load_cluster(str(path))
    assert found.name == "ours"
    assert found.pools["h20"].accelerator.memory_gib == 95


def test_mistakes_name_the_field_and_the_nearest_right_name() -> None:
    wrong = problem(lambda: cluster({"accelerator": "L40"}))
    assert wrong == "pools.gpus.accelerator: there is no accelerator L40; did you mean L40S?"
    wrong = problem(lambda: cluster({"acelerator": "L40S"}))
    assert "pools.gpus.acelerator: unknown field; did you mean accelerator?" in wrong
    wrong = problem(lambda: cluster({"nodes": 0}))
    assert (
        wrong
        == "pools.gpus.nodes: an empty pool: give it at least one node, or leave it out"
        + (" (got 0)")
    )
    wrong = problem(lambda: cluster({"price_usd_per_hour": -1}))
    assert "pools.gpus.price_usd_per_hour: input should be greater than or equal to 0" in wrong
    wrong = problem(lambda: cluster({"spot": {"share": 1.5}}))
    assert "pools.gpus.spot.share: input should be less than or equal to 1 (got 1.5)" in wrong
    wrong = problem(lambda: cluster({"link": "nvlnk4"}))
    assert wrong == "pools.gpus.link: there is no link nvlnk4; did you mean nvlink4?"
    wrong = problem(lambda: cluster({"cold_start": "warm"}))
    assert "pools.gpus.cold_start: there is no cold start warm; did you mean warm_node?" in wrong
    wrong = problem(lambda: cluster(cold_start="fresh"))
    assert wrong == "cold_start: there is no cold start fresh; did you mean fresh_node?"
    wrong = problem(lambda: cluster(placements={"rollout": {"pools": ["gpu"]}}))
    assert wrong == "placements.rollout.pools: there is no pool gpu; did you mean gpus?"
    wrong = problem(lambda: cluster(placements={"rollot": {}}))
    assert "placements.rollot" in wrong
    wrong = problem(lambda: cluster(placements={"rollout": {"data_parallel": 2}}))
    assert "are for training" in wrong
    for empty in ({"pools": {}}, {"pools": None}, {}):
        wrong = problem(lambda raw=empty: make_cluster(raw))
        assert "pools: " in wrong
    assert "unknown field; did you mean pools?" in problem(lambda: make_cluster({"pool": {}}))


def test_a_model_that_does_not_fit_is_answered_by_what_would() -> None:
    found, big = cluster(), load_shape("Llama-3.1-70B")
    pool = found.pools["gpus"]
    assert found.plan_instance("rollout", pool, big, 4096) == 4
    narrow = cluster({"per_node": 2})
    wrong = problem(lambda: narrow.plan_instance("rollout", narrow.pools["gpus"], big, 4096))
    assert wrong.startswith("pools.gpus: Llama-3.1-70B (131.4 GiB of weights in bfloat16)")
    assert wrong.endswith("does not fit on L40S; B200 holds it")
    asked = cluster(placements={"rollout": {"tensor_parallel": 2}})
    wrong = problem(lambda: asked.plan_instance("rollout", asked.pools["gpus"], big, 4096))
    assert wrong.startswith("placements.rollout.tensor_parallel: ")
    assert wrong.endswith("does not fit on 2 x L40S; it fits with tensor_parallel 4")
    wide = cluster({"per_node": 4}, placements={"rollout": {"tensor_parallel": 8}})
    wrong = problem(lambda: wide.plan_instance("rollout", wide.pools["gpus"], big, 4096))
    assert "8 accelerators do not share a node; pool gpus has 4 a node" in wrong


def test_training_takes_as_few_accelerators_as_it_fits_on() -> None:
    found = cluster({"accelerator": "H100"})
    pool, shape = found.pools["gpus"], load_shape("Qwen2.5-7B")
    layout = found.plan_training(pool, shape, 8192)
    assert 2 <= layout.data <= 4
    assert found.plan_training(pool, shape, 8192, trainable=0.01).data < layout.data


def test_training_that_does_not_fit_is_answered_by_what_would() -> None:
    shape = load_shape("Llama-2-70B")

    def training(model: str, tokens: int = 8192, **placement: Any) -> str:
        found = cluster({"accelerator": "H100"}, placements={"training": placement})
        pool = found.pools["gpus"]
        return problem(lambda: found.plan_training(pool, load_shape(model), tokens))

    wrong = training("Qwen2.5-7B", data_parallel=1)
    assert wrong.startswith("placements.training: training Qwen2.5-7B on H100 does not fit: each")
    assert "of the 73.4 that can be used; data_parallel " in wrong
    wrong = training("Qwen2.5-7B", data_parallel=32)
    assert "training on 32 x H100 does not fit: the pool has 16; data_parallel" in wrong
    assert "microbatches of" in training("Qwen2.5-0.5B", tokens=2**18)
    assert "take a larger pool or a smaller model" in training("Qwen3-235B-A22B")
    roomy = cluster({"accelerator": "H100", "nodes": 8})
    assert roomy.plan_training(roomy.pools["gpus"], shape, 4096).data > 16
    wrong = training("Qwen2.5-7B", tokens=2**16)
    assert "; tensor_parallel " in wrong
    assert " with data_parallel " in wrong


def test_functions_run_where_they_are_placed_else_anywhere() -> None:
    found = make_cluster(
        {
            "pools": {"a": POOL, "b": POOL, "c": POOL},
            "placements": {"rollout": {"pools": ["c", "a"]}},
        }
    )
    assert [pool.name for pool in found.pools_for("rollout")] == ["c", "a"]
    assert [pool.name for pool in found.pools_for("reward")] == ["a", "b", "c"]


def test_a_missing_cluster_file_is_named_with_its_nearest(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("pools: {}")
    wrong = problem(lambda: load_cluster(str(tmp_path / "cluser.yaml")))
    assert "there is no cluster file" in wrong
    assert wrong.endswith("cluster.yaml?")
