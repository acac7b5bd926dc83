from pathlib import Path
from typing import Any

import pytest

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_file import load_spec
from simulator.budget import BudgetAnswer, answer_budget, powers_of_two
from simulator.cluster import Cluster, make_cluster
from simulator.result import Simulation, StepFound, Use

JOB = load_spec(str(Path(__file__).parents[3] / "examples" / "simulate" / "qwen2.5-7b-grpo.yaml"))
CLUSTER = make_cluster({"pools": {"gpus": {"accelerator": "L40S", "per_node": 8, "nodes": 2}}})


def run(spec: JobSpec, _cluster: Cluster, strategy: str, *, growth: float = 0.0) -> Simulation:
    """A step takes 1 + 15 / actors seconds (twice that under static scheduling, as much again
    towards cost) and a dollar for each second of an actor; later ones ``growth`` more than the
    one before."""
    actors, steps = spec.rollout.max_instances, spec.training.steps or 1
    spared = spec.objective.time_weight == 0
    each = (1 if strategy == "rlhfless" else 2) * (1 + 15 / actors) * (2 if spared else 1)
    seconds = each * (steps + growth * steps * (steps - 1) / 2)
    step = StepFound(0, 1, each, each, 0, 0, actors, 1, 1, 1, 0, {}, {})
    return Simulation(
        job="j",
        cluster="c",
        strategy=strategy,
        seed=0,
        steps=steps,
        samples_per_step=8,
        simulated=(step,),
        seconds=seconds,
        usage={"rollout": Use(1, busy_s=1.0, usd=seconds * actors / (4 if spared else 1))},
        tokens=1,
        prompt_tokens=1,
        preemptions=0,
        spans=(),
        window_s=(0, 1),
    )


def answer(usd: float, cluster: Cluster = CLUSTER, simulate: Any = run) -> BudgetAnswer:
    strategies = ["static", "rlhfless"]
    return answer_budget(usd, JOB, cluster, simulate, strategies=strategies, num_prompts=640)


def test_ways_are_powers_of_two_of_actors_and_weights_where_they_matter() -> None:
    assert powers_of_two(1) == [1]
    assert powers_of_two(8) == [1, 2, 4, 8]
    assert powers_of_two(11) == [1, 2, 4, 8, 11]
    told: list[tuple[int, int]] = []
    found = answer_budget(
        1e6, JOB, CLUSTER, run, strategies=["static", "rlhfless"], num_prompts=640,
        progress=lambda *at: told.append(at),
    )  # fmt: skip
    assert told[-1] == (18, 18)
    counts = [way.max_instances for way in found.ways if way.strategy == "static"]
    assert sorted(counts) == [1, 2, 4, 8, 16]
    weights = {way.time_weight for way in found.ways if way.strategy == "rlhfless"}
    assert weights == {None, 0, 0.5, 1}  # a single actor is no choice


def test_enough_money_takes_the_fastest_way() -> None:
    found = answer(1e5)
    assert found.fits
    assert found.steps_asked == 100
    best = found.best
    assert best is not None
    assert (best.strategy, best.max_instances, best.time_weight) == ("rlhfless", 16, 0.5)
    assert best.usd == pytest.approx(3100)
    assert found.ways[0].steps == max(way.steps for way in found.ways) == 11_764
    assert found.sentence == (
        "$100,000 is enough for the 100 steps asked: rlhfless with up to 16 actors, time weight "
        "0.5 is the fastest, 3.23 min for $3,100; rlhfless with up to 2 actors, time weight 0 the "
        "cheapest, $850 in 28.3 min. The money lasts for 11,764 steps with rlhfless with up to 2 "
        "actors, time weight 0."
    )


def test_less_money_takes_the_fastest_way_that_fits() -> None:
    found = answer(2000)
    assert found.fits
    assert found.best is not None
    assert found.best.usd <= 2000
    fitting = [way for way in found.ways if way.usd <= 2000]
    assert found.best.simulation.seconds == min(way.simulation.seconds for way in fitting)


def test_too_little_money_gets_as_far_as_it_does() -> None:
    found = answer(100)
    assert not found.fits
    assert found.best is not None
    assert found.best.steps == 11
    assert found.best.epochs == pytest.approx(11 * 64 / 640)
    assert found.best.seconds == pytest.approx(11 * 17)
    assert "is not enough for the 100 steps asked" in found.sentence
    assert "gets farthest, 11 steps (1.1 epochs) in 3.12 min; all 100 take $850 at least" in (
        found.sentence
    )


def test_steps_that_grow_dearer_are_counted_by_simulating_them() -> None:
    # Growth below 0: the first steps cost more than the mean.
    def dearer(spec: JobSpec, cluster: Cluster, strategy: str) -> Simulation:
        return run(spec, cluster, strategy, growth=-0.005)

    found = answer(100, simulate=dearer)
    even = int(100 / (min(way.usd for way in found.ways) / 100))
    assert found.best is not None
    assert found.best.steps < even


def test_money_for_no_step_is_told() -> None:
    found = answer(3)
    assert found.best is None
    assert not found.fits
    assert found.sentence == (
        "$3.00 does not pay for a step and the start of its instances: the cheapest way, rlhfless "
        "with up to 2 actors, time weight 0, takes $8.50 a step on average, $850 for all 100."
    )


def test_what_cannot_be_answered_is_refused() -> None:
    for usd in (0, -5, float("nan"), float("inf")):
        with pytest.raises(UserError, match="is no amount of money to spend"):
            answer(usd)

    def unpriced(spec: JobSpec, cluster: Cluster, strategy: str) -> Simulation:
        found = run(spec, cluster, strategy)
        return Simulation(**{**found.__dict__, "usage": {"rollout": Use(1, usd=None)}})

    l4 = make_cluster({"pools": {"small": {"accelerator": "L4", "per_node": 8}}})
    small = JOB.model_copy(update={"model": JOB.model.model_copy(update={"path": "Qwen2.5-0.5B"})})
    with pytest.raises(UserError, match=r"set pools.small.price_usd_per_hour in the") as raised:
        answer_budget(5, small, l4, unpriced, strategies=["static"], num_prompts=9)
    assert raised.value.param == "pools.small.price_usd_per_hour"

    def impossible(spec: JobSpec, cluster: Cluster, strategy: str) -> Simulation:
        raise UserError("does not fit")

    with pytest.raises(UserError, match="does not fit"):
        answer(5, simulate=impossible)
