"""Watches a rollout and moves samples where the cost model says it pays (``scaling.migration``)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from controller.actor import Actor
from controller.job import Job
from controller.planning import RolloutPlan
from controller.rollout import Rollout
from scaling.forecasts import Forecast
from scaling.loads import ActorLoad, MoveRules, Running
from scaling.migration import plan_moves

MIN_ITERATIONS = 8
"""An actor's own pace counts once it has made so many iterations."""
DOUBT_S = 1.0
"""And counts half after so long: reports come some tenths of a second late when others keep the
controller busy, and a move on their account is made in vain."""


class Rebalancer:
    """Called every now and then with the rollout. ``forecasts``: by group, made before the step;
    ``load_s``: group -> seconds to load its prompt's keys and values where that beats computing
    them."""

    def __init__(
        self,
        job: Job,
        plan: RolloutPlan,
        forecasts: Mapping[int, Forecast],
        load_s: Mapping[int, float],
    ) -> None:
        self._job = job
        self._plan = plan
        self._forecasts = forecasts
        self._load_s = load_s
        self._moved_s: dict[str, float] = {}
        self._began_s = asyncio.get_running_loop().time()

    async def __call__(self, rollout: Rollout) -> None:
        if "decode" not in self._plan.cost.measured:
            return  # nothing to weigh a move with
        loads = self._loads(rollout)
        if len(loads) < 2:
            return
        spec = self._job.spec
        rules = MoveRules(
            time_weight=spec.objective.time_weight,
            reference=self._plan.reference,
            early_release=spec.scheduling.early_release,
            load_s=self._load_s,
            latest_s=self._latest_s(),
        )
        # In a thread: a fraction of a second for a thousand samples, while streams go on.
        planned = await asyncio.to_thread(plan_moves, loads, self._plan.cost, rules)
        actors = {actor.name: actor for actor in rollout.actors}  # some may have ended
        together: dict[tuple[str, str], list[str]] = {}
        for move in planned.moves:
            together.setdefault((move.source, move.target), []).append(move.sample)
        now_s = asyncio.get_running_loop().time()
        for (source, target), ids in together.items():
            self._moved_s |= dict.fromkeys(ids, now_s)
            await rollout.move(actors[source], actors[target], ids)

    def _latest_s(self) -> float:
        """Seconds from now by which all must be done."""
        slowdown, reference = self._job.spec.objective.max_slowdown, self._plan.reference
        if slowdown is None or reference is None:
            return math.inf
        elapsed_s = asyncio.get_running_loop().time() - self._began_s
        return max(0.0, slowdown * reference[0] - elapsed_s)

    def remaining_s(self, rollout: Rollout) -> float:
        """Predicted seconds until the last sample that runs is done."""
        loads = self._loads(rollout)
        left = max((s.remaining for load in loads for s in load.samples), default=0.0)
        return self._plan.cost.decode_s(left, 0, 0)

    def _loads(self, rollout: Rollout) -> list[ActorLoad]:
        forecasts = self._sharpened(rollout)
        num_left = len(rollout.collector.all_remaining())
        return [self._load(rollout, actor, forecasts, num_left) for actor in rollout.running]

    def _load(
        self, rollout: Rollout, actor: Actor, forecasts: Mapping[int, Forecast], num_left: int
    ) -> ActorLoad:
        """``num_left``: samples of all actors that are not finished."""
        collector, call = rollout.collector, actor.call
        now_s = asyncio.get_running_loop().time()
        streaming = call is not None and call.began_s is not None
        moving = rollout.moving
        samples = []
        for name in actor.left:
            if name in moving:
                continue
            sample = collector.samples[name]
            generated = collector.num_tokens(name)
            moved_s = self._moved_s.get(name)
            forecast = forecasts[sample.group]
            samples.append(
                Running(
                    id=name,
                    group=sample.group,
                    prompt_tokens=len(sample.prompt),
                    generated=generated,
                    remaining=forecast.remaining(generated),
                    moved_ago_s=None if moved_s is None else now_s - moved_s,
                    late=forecast.late(generated, num_left),
                )
            )
        return ActorLoad(
            name=actor.name,
            samples=tuple(samples),
            rows=self._plan.capacity.max_batch,
            kv_tokens=self._plan.capacity.kv_tokens,
            slowdown=self._slowdown(actor),
            ready_s=0.0 if streaming else self._ready_s(rollout, now_s),
            accept=streaming and call is not None and call.steerable,
        )

    def _ready_s(self, rollout: Rollout, now_s: float) -> float:
        """Seconds until an actor streams that does not yet: nearly none on a warm instance."""
        if self._job.dispatcher.warm("rollout") >= len(rollout.running):
            return 0.0
        return max(0.0, self._plan.cost.cold_start_s("rollout") - (now_s - self._began_s))

    def _slowdown(self, actor: Actor) -> float:
        """The actor's measured iteration time over the model's."""
        call = actor.call
        if call is None or len(call.reports) < 2:
            return 1.0
        first, newest = call.reports
        iterations = newest.progress.iterations - first.progress.iterations
        if iterations < MIN_ITERATIONS:
            return 1.0
        context = iterations * (first.progress.kv_tokens + newest.progress.kv_tokens) / 2
        expected_s = self._plan.cost.decode_s(
            iterations, newest.new_tokens - first.new_tokens, context
        )
        measured_s = newest.at_s - first.at_s
        return min(8.0, max(0.5, (measured_s + DOUBT_S) / (expected_s + DOUBT_S)))

    def _sharpened(self, rollout: Rollout) -> dict[int, Forecast]:
        """Forecasts by group, with what the step's own samples say."""
        collector = rollout.collector
        ended: dict[int, list[int]] = {}
        running: dict[int, list[int]] = {}
        for name, sample in collector.samples.items():
            lengths = ended if collector.is_finished(name) else running
            lengths.setdefault(sample.group, []).append(collector.num_tokens(name))
        return {
            group: self._forecasts[group].with_siblings(ended.get(group, ()), reached)
            for group, reached in running.items()
        }
