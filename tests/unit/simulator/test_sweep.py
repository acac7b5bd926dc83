from dataclasses import replace
from pathlib import Path

import pytest

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_file import load_spec, parse_spec
from simulator.cluster import Cluster, ClusterFile
from simulator.result import Simulation, StepFound, Use
from simulator.sweep import Axis, SweepPoint, changed, parse_axis, rank, sweep

JOB = load_spec(str(Path(__file__).parents[3] / "examples" / "simulate" / "qwen2.5-7b-grpo.yaml"))
POOL = {"accelerator": "L40S", "per_node": 8, "nodes": 2}
CLUSTER = ClusterFile({"name": "here", "pools": {"gpus": POOL}})


def simulation(seconds: float, usd: float | None, held_s: float = 100.0) -> Simulation:
    step = StepFound(0, 1, seconds, seconds, 0, 0, 1, 1, 1, 1, 0, {}, {})
    return Simulation(
        job="j",
        cluster="c",
        strategy="s",
        seed=0,
        steps=10,
        samples_per_step=8,
        simulated=(step,),
        seconds=seconds,
        usage={"rollout": Use(1, busy_s=held_s, usd=usd)},
        tokens=1,
        prompt_tokens=1,
        preemptions=0,
        spans=(),
        window_s=(0, 1),
    )


def amdahl(spec: JobSpec, cluster: Cluster, strategy: str) -> Simulation:
    """Work of which a part does not speed up."""
    actors = spec.rollout.max_instances
    if actors > cluster.pools["gpus"].accelerators:
        raise UserError("too many")
    seconds = (1 if strategy == "rlhfless" else 2) * (1 + 15 / actors)
    return simulation(seconds, usd=seconds * actors)


def test_axes_are_ranges_and_lists() -> None:
    assert parse_axis("rollout.max_instances=4:16:4").values == (4, 8, 12, 16)
    assert parse_axis("rollout.max_instances = 4:17:4").values == (4, 8, 12, 16)
    assert parse_axis("a.b=1:3") == Axis("a.b", (1, 2, 3))
    tenths = parse_axis("objective.time_weight=0:1:0.1").values
    assert len(tenths) == 11
    assert tenths[3] == 0.3
    assert all(isinstance(value, float) for value in tenths)
    assert parse_axis("scheduling.assignment=sorted, balanced").values == ("sorted", "balanced")
    assert parse_axis("training.learning_rate=1e-6,2e-6,1e-6").values == (1e-6, 2e-6)
    assert parse_axis("training.overlap=true,false").values == (True, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rollout.max_instances", "write field=first:last:step or field=value,value"),
        ("=1,2", "write field="),
        ("a..b=1", "write field="),
        ("a=", "write field="),
        ("a=1:2:3:4", "write a range as first:last:step"),
        ("a=1:x", "write a range as first:last:step"),
        ("a=1:inf", "write a range as first:last:step"),
        ("a=4:1", "a range goes up"),
        ("a=1:4:0", "a range goes up"),
        ("a=0:1:0.00001", "100,001 values; at most 2,000"),
        ("a=[,2", "is not a YAML value"),
        ("scheduling.strategy=static,rlhfless", "strategies are compared by name"),
    ],
)
def test_mistakes_in_an_axis_are_told(text: str, expected: str) -> None:
    with pytest.raises(UserError, match=r"^--sweep ") as raised:
        parse_axis(text)
    assert expected in raised.value.detail


def test_fields_of_job_and_cluster_are_changed() -> None:
    job, cluster = changed(
        JOB, CLUSTER, {"rollout.max_instances": 3, "cluster.pools.gpus.nodes": 5, "seed": 7}
    )
    assert (job.rollout.max_instances, job.seed) == (3, 7)
    assert cluster.pools["gpus"].nodes == 5
    assert CLUSTER.cluster().pools["gpus"].nodes == 2


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("rollout.max_instance", 3, "rollout.max_instance: unknown field; did you mean max_inst"),
        ("rollout.max_instances", 0, "rollout.max_instances: input should be greater than 0"),
        ("seed.x", 0, "--sweep seed.x=0: seed holds a plain value"),
        ("cluster.pools.gpu.nodes", 3, "cluster.pools.gpu.nodes: there is no pool gpu; did you"),
        ("cluster.pools.gpus.nodes", 0, "pools.gpus.nodes: an empty pool"),
        ("cluster.pools.gpus.price_usd_per_hour", -1, "pools.gpus.price_usd_per_hour: input"),
        ("cluster.name.x", 1, "cluster.name.x=1: name holds a plain value"),
    ],
)
def test_a_wrong_field_or_value_is_named(path: str, value: object, expected: str) -> None:
    with pytest.raises(UserError) as raised:
        changed(JOB, CLUSTER, {path: value})
    assert raised.value.detail.startswith(expected)


def test_a_sweep_finds_the_frontier_and_its_knee() -> None:
    told: list[tuple[int, int]] = []
    axis = parse_axis("rollout.max_instances=1,2,4,8,16,64")
    found = sweep(
        [axis],
        JOB,
        CLUSTER,
        amdahl,
        strategies=["static", "rlhfless"],
        progress=lambda *at: told.append(at),
    )
    assert told[0] == (0, 12)
    assert told[-1] == (12, 12)
    assert len(found.points) == 10
    assert [(each.strategy, each.values) for each in found.impossible] == [
        ("static", {axis.path: 64}),
        ("rlhfless", {axis.path: 64}),
    ]
    assert found.impossible[0].reason == "too many"
    best = [found.points[index] for index in found.frontier]
    assert {point.strategy for point in best} == {"rlhfless"}
    assert [point.values[axis.path] for point in best] == [16, 8, 4, 2, 1]
    assert found.in_usd
    assert found.knee is not None
    assert found.points[found.knee].values[axis.path] in (4, 8)
    assert found.time_and_cost(found.frontier[-1]) == (16, 16)


def test_several_axes_make_a_grid() -> None:
    axes = [parse_axis("rollout.max_instances=1,2"), parse_axis("cluster.pools.gpus.nodes=1:3")]
    found = sweep(axes, JOB, CLUSTER, amdahl)
    assert len(found.points) == 6
    assert found.points[-1].values == {"rollout.max_instances": 2, "cluster.pools.gpus.nodes": 3}


def test_a_sweep_of_which_nothing_works_fails_with_the_first_reason() -> None:
    with pytest.raises(UserError, match="too many"):
        sweep([parse_axis("rollout.max_instances=32,64")], JOB, CLUSTER, amdahl)
    many = [parse_axis("seed=1:100"), parse_axis("rollout.max_instances=1:100")]
    with pytest.raises(UserError, match="10,000 combinations; at most 2,000"):
        sweep(many, JOB, CLUSTER, amdahl)


def test_where_a_price_is_unknown_cost_is_what_is_held() -> None:
    points = [
        SweepPoint("s", {"x": 1}, simulation(1, usd=5, held_s=30)),
        SweepPoint("s", {"x": 2}, simulation(2, usd=None, held_s=10)),
    ]
    found = rank([], points)
    assert not found.in_usd
    assert found.time_and_cost(0) == (1, 30)
    assert found.frontier == (0, 1)
    priced = rank([], [replace(point, simulation=simulation(1, 5)) for point in points])
    assert priced.in_usd
    assert priced.frontier == (0,)


def test_a_strategys_own_switches_can_be_swept() -> None:
    job = parse_spec(JOB.model_dump() | {"scheduling": {"strategy": "custom"}})
    seen: list[bool] = []

    def look(spec: JobSpec, _cluster: Cluster, _strategy: str) -> Simulation:
        seen.append(spec.scheduling.migrate)
        return simulation(1, 1)

    sweep([parse_axis("scheduling.migrate=true,false")], job, CLUSTER, look, strategies=["job"])
    assert seen == [True, False]
