"""Hand-made results of simulations, to show in reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from controller.ledger import Phase
from rlhfless.messages import FUNCTION_NAMES, FunctionName
from simulator.budget import BudgetAnswer, Way
from simulator.result import InstanceSpan, Simulation, StepFound, Use
from simulator.sweep import Axis, Impossible, Sweep, SweepPoint, rank

PLAN: dict[str, Any] = {
    "actors": 4,
    "strategy": "sorted",
    "reason": "lowest score at time weight 0.5 <b>",
    "alternatives": [
        {"actors": 4, "strategy": "sorted", "seconds": 50.0, "function_seconds": 150.0,
         "score": 0.7, "chosen": True},
        {"actors": 8, "strategy": "balanced", "seconds": 40.0, "function_seconds": 300.0,
         "score": 0.9, "chosen": False},
    ],
    "outcome": {"seconds": 52.0, "predicted_s": 50.0, "moved": 3, "released": 2},
}  # fmt: skip
SPEC: dict[str, Any] = {
    "name": "math",
    "model": {"path": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"},
    "algorithm": {"name": "grpo", "group_size": 8},
}


def step_found(step: int, seconds: float = 80.0, **changes: Any) -> StepFound:
    found = StepFound(
        step=step,
        stands_for=10.0,
        seconds=seconds,
        rollout_s=0.7 * seconds,
        scoring_s=0.05 * seconds,
        train_s=0.2 * seconds,
        actors=4,
        tokens=150_000,
        prompt_tokens=60_000,
        longest=2048,
        moved=3,
        metrics={"rollout/actors": 4.0},
        plan=PLAN,
    )
    return replace(found, **changes)


def simulation(strategy: str = "rlhfless", slower: float = 1.0, **changes: Any) -> Simulation:
    """100 steps, 10 of them simulated, on 4 to 8 actors of one GPU and a trainer of 8."""
    steps = tuple(
        step_found(10 * n + 1, slower * (76.0 + 2 * (n % 5)), actors=4 if n < 8 else 8)
        for n in range(10)
    )
    usage: dict[FunctionName, Use] = {
        "rollout": Use(1, 22_000.0, 3_000.0 * slower, 1_500.0, 29.4, 29.4, 10.2),
        "reward": Use(0, 900.0, 7_000.0, 20.0, 0.0, 0.0, 0.0),
        "reference": Use(1, 2_000.0, 4_000.0 * slower, 500.0, 7.2, 7.2, 2.5),
        "training": Use(8, 12_800.0, 9_000.0 * slower, 2_400.0, 26.9, 26.9, 9.3),
    }
    made = Simulation(
        job="math",
        cluster="h100-8",
        strategy=strategy,
        seed=7,
        steps=100,
        samples_per_step=256,
        simulated=steps,
        seconds=10 * sum(step.seconds for step in steps),
        usage=usage,
        tokens=15_000_000.0,
        prompt_tokens=6_000_000.0,
        preemptions=2.5,
        spans=spans(slower),
        window_s=(0.0, 160.0 * slower),
        assumptions=("no run was recorded: lengths follow LONG_TAILED_MATH", "prices of 2026-11"),
        spec=SPEC,
    )
    return replace(made, **changes)


def spans(slower: float = 1.0, actors: int = 4, steps: int = 2) -> tuple[InstanceSpan, ...]:
    """``steps`` steps of 80 s: actors roll out until one by one they have nothing to do, then the
    trainer works; every second actor is on spot."""

    def span(at: float, instance: str, phase: Phase, start_s: float, end_s: float) -> InstanceSpan:
        function, number = instance.rsplit("-", 1)
        assert function in FUNCTION_NAMES
        spot = function == "rollout" and int(number) % 2 == 0
        return InstanceSpan(
            instance=instance,
            function=function,
            pool="" if function == "reward" else "spot-pool" if spot else "reserved",
            spot=spot,
            accelerators={"reward": 0, "training": 8}.get(function, 1),
            phase=phase,
            start_s=slower * (at + start_s),
            end_s=slower * (at + end_s),
        )

    made = []
    for step in range(steps):
        at = 80.0 * step
        for actor in range(actors):
            name, ready = f"rollout-{step * actors + actor + 1}", 30.0 + 24.0 * actor / actors
            made.append(span(at, name, "cold", 0.0, 4.0))
            made.append(span(at, name, "busy", 4.0, ready))
            made.append(span(at, name, "idle", ready, 58.0))
        made.append(span(at, "reward-1", "busy", 20.0, 58.0))
        made.append(span(at, "training-1", "idle", 0.0, 60.0))
        made.append(span(at, "training-1", "busy", 60.0, 80.0))
    return tuple(made)


def max_instances(values: Sequence[int], worse: int | None = None) -> Sweep:
    """A sweep in which more actors are faster and dearer; one of them is dearer than it need be."""
    axis = Axis("rollout.max_instances", tuple(values))
    points = []
    for number in values:
        dearer = 20.0 if number == worse else 0.0
        use = Use(1, 20_000.0, 1_000.0 * number, 500.0, 30 + 1.5 * number + dearer, 50.0, 10.0)
        found = simulation(slower=1 + 16 / number, usage={"rollout": use}, spans=())
        points.append(SweepPoint("rlhfless", {axis.path: number}, found))
    too_many = Impossible("rlhfless", {axis.path: 99}, "too many")
    return rank([axis], points, [] if worse is None else [too_many])


def budget_answer(fits: bool) -> BudgetAnswer:
    ways = tuple(
        Way(strategy, 8, None, simulation(strategy, slower), usd, steps, 80.0 * steps, 0.5)
        for strategy, slower, usd, steps in (("rlhfless", 1.0, 63.5, 78), ("static", 1.4, 90.0, 55))
    )
    return BudgetAnswer(50.0, 100, ways, fits, ways[0] if fits else None, "$50.00 is an answer.")
