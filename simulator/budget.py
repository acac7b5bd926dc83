"""What can be done for the money: how far each way of running a job gets.

Every strategy is tried with numbers of actors in powers of two and, where it chooses the number
itself, with weights between time and cost. A way's steps are the money over its mean cost of a
step; for the way that is recommended the job is simulated once more with just so many, since steps
grow dearer while responses grow longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from rlhfless.spec_file import parse_spec
from simulator.cluster import Cluster
from simulator.model_shape import load_shape
from simulator.report.units import duration, several, usd
from simulator.result import Simulation
from simulator.room import capacity
from simulator.strategies import OBJECTIVES, apply
from simulator.sweep import Run

TIME_WEIGHTS = (0.0, 0.5, 1.0)
_ROUNDS = 3
"""Of simulating the recommended way with fewer steps, until they cost no more than the money."""


@dataclass(frozen=True)
class Way:
    """One way of running the job. ``usd`` and ``simulation``: of the whole job as asked; of it, or
    of more, the money buys ``steps``, which take ``seconds`` and are ``epochs`` passes over the
    data. ``time_weight`` None: the strategy does not choose the number of actors."""

    strategy: str
    max_instances: int
    time_weight: float | None
    simulation: Simulation
    usd: float
    steps: int
    seconds: float
    epochs: float

    @property
    def name(self) -> str:
        weight = "" if self.time_weight is None else f", time weight {self.time_weight:g}"
        return f"{self.strategy} with up to {several(self.max_instances, 'actor')}{weight}"


@dataclass(frozen=True)
class BudgetAnswer:
    """``ways``: all that were tried, those with the most steps first. ``fits``: whether one of them
    does the whole job for the money. ``best``: the fastest that does, else the one that gets
    farthest; None: the money buys no step. ``sentence``: the answer in words."""

    budget_usd: float
    steps_asked: int
    ways: tuple[Way, ...]
    fits: bool
    best: Way | None
    sentence: str


@dataclass(frozen=True)
class _Try:
    strategy: str
    time_weight: float | None
    spec: JobSpec
    cluster: Cluster


def answer_budget(
    budget_usd: float,
    spec: JobSpec,
    cluster: Cluster,
    run: Run,
    *,
    strategies: Sequence[str],
    num_prompts: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> BudgetAnswer:
    """``num_prompts``: rows of the job's dataset; ``progress``: told (done, total) of the ways.

    Raises ``UserError`` for a budget of nothing, a cluster without prices, and where no way works.
    """
    if not 0 < budget_usd < math.inf:
        raise UserError(f"--budget: {budget_usd:g} is no amount of money to spend")
    grid = list(_grid(spec, cluster, strategies))
    tried: list[tuple[Way, _Try]] = []
    first: UserError | None = None
    for number, each in enumerate(grid):
        progress(number, len(grid))
        try:
            found = run(each.spec, each.cluster, each.strategy)
        except UserError as error:
            first = first or error
            continue
        cost = _priced(found, cluster)
        steps = int(budget_usd / (cost / found.steps)) if cost else found.steps
        tried.append((_way(each, found, steps, steps * found.step_s, num_prompts), each))
    progress(len(grid), len(grid))
    if not tried:
        raise first or UserError("--budget: no strategy was given")
    tried.sort(key=lambda pair: (-pair[0].steps, pair[0].seconds))
    whole = [way for way, _ in tried if way.usd <= budget_usd]
    best: Way | None = min(whole, key=lambda way: way.simulation.seconds, default=None)
    if best is None:
        best = _checked(*tried[0], budget_usd, run, num_prompts)
    ways = tuple(way for way, _ in tried)
    asked = ways[0].simulation.steps
    sentence = _sentence(budget_usd, asked, ways, best, fits=bool(whole))
    return BudgetAnswer(budget_usd, asked, ways, bool(whole), best, sentence)


def powers_of_two(most: int) -> list[int]:
    """Up to ``most``, and ``most`` itself, whether it is one or not."""
    return [*(2**n for n in range(most.bit_length()) if 2**n < most), most]


def _grid(spec: JobSpec, cluster: Cluster, strategies: Sequence[str]) -> Iterator[_Try]:
    shape = load_shape(spec.model.path, spec.model.dtype)
    most = capacity("rollout", spec, cluster, shape)
    if cluster.sharing == "unlimited":
        most = spec.rollout.max_instances
    for strategy in strategies:
        bounds = set()
        for count in powers_of_two(most):
            asked = _with(spec, "rollout", max_instances=count)
            job, machines = apply(strategy, asked, cluster)
            bound = job.rollout.max_instances
            if bound in bounds:
                continue  # the strategy leaves no room for more
            bounds.add(bound)
            decided = any(strategy.endswith(f"+{name}") for name in OBJECTIVES)
            if not job.scheduling.scale_actors or bound == 1 or decided:
                yield _Try(strategy, None, job, machines)
                continue
            for weight in TIME_WEIGHTS:
                weighed = _with(job, "objective", time_weight=weight)
                yield _Try(strategy, weight, weighed, machines)


def _with(spec: JobSpec, section: str, **fields: Any) -> JobSpec:
    raw = spec.model_dump()
    raw[section] |= fields
    return parse_spec(raw)


def _priced(found: Simulation, cluster: Cluster) -> float:
    if found.usd is not None:
        return found.usd
    pools = cluster.pools.values()
    without = next((p.name for p in pools if p.on_demand_usd_per_hour is None), None)
    field = "price_usd_per_hour"
    if without is None:  # then it was held on spot
        without = next(p.name for p in pools if p.spot_usd_per_hour is None)
        field = "spot_price_usd_per_hour"
    name, param = without, f"pools.{without}.{field}"
    raise UserError(
        f"--budget: what an accelerator of pool {name} costs is unknown; set {param} in the "
        "cluster file",
        param=param,
    )


def _way(each: _Try, found: Simulation, steps: int, seconds: float, num_prompts: int) -> Way:
    return Way(
        strategy=each.strategy,
        max_instances=each.spec.rollout.max_instances,
        time_weight=each.time_weight,
        simulation=found,
        usd=found.usd or 0.0,
        steps=steps,
        seconds=seconds,
        epochs=steps * each.spec.training.prompts_per_step / num_prompts,
    )


def _checked(way: Way, each: _Try, budget_usd: float, run: Run, num_prompts: int) -> Way | None:
    """The way with as many steps as the money does buy, None if that is not one."""
    steps, seconds = way.steps, way.seconds
    for _ in range(_ROUNDS):
        if steps < 1:
            return None
        found = run(_with(each.spec, "training", steps=steps), each.cluster, each.strategy)
        cost = _priced(found, each.cluster)
        if cost <= budget_usd:
            seconds = found.seconds
            break
        steps = min(steps - 1, int(steps * budget_usd / cost))
        seconds = steps * found.step_s
    return _way(each, way.simulation, steps, seconds, num_prompts) if steps else None


def _sentence(
    budget_usd: float, asked: int, ways: Sequence[Way], best: Way | None, *, fits: bool
) -> str:
    cheapest = min(ways, key=lambda way: way.usd)
    whole = f"all {asked:,}" if asked > 1 else "the 1"
    if best is None:
        return (
            f"{usd(budget_usd)} does not pay for a step and the start of its instances: the "
            f"cheapest way, {cheapest.name}, takes {usd(cheapest.usd / asked)} a step on average, "
            f"{usd(cheapest.usd)} for {whole}."
        )
    if not fits:
        return (
            f"{usd(budget_usd)} is not enough for the {several(asked, 'step')} asked: {best.name} "
            f"gets farthest, {several(best.steps, 'step')} ({best.epochs:.2g} epochs) in "
            f"{duration(best.seconds)}; {whole} take {usd(cheapest.usd)} at least."
        )
    said = (
        f"{usd(budget_usd)} is enough for the {several(asked, 'step')} asked: {best.name} is the "
        f"fastest, {duration(best.simulation.seconds)} for {usd(best.usd)}"
    )
    if cheapest is not best:
        took = duration(cheapest.simulation.seconds)
        said += f"; {cheapest.name} the cheapest, {usd(cheapest.usd)} in {took}"
    most = ways[0]
    return f"{said}. The money lasts for {several(most.steps, 'step')} with {most.name}."
