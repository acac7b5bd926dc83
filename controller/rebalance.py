"""Watches a rollout and moves samples where the cost model says it pays (``scaling.migration``)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from controller.actor import Actor
from controller.collector import Collector
from controller.job import Job
from controller.planning import RolloutPlan
from controller.rollout import Rollout
from scaling.forecast_table import ForecastTable
from scaling.forecasts import Forecast
from scaling.loads import Loads, MoveRules
from scaling.migration import plan_moves

MIN_ITERATIONS = 8
"""An actor's own pace counts once it has made so many iterations."""
DOUBT_S = 1.0
"""And counts half after so long: reports come some tenths of a second late when others keep the
controller busy, and a move on their account is made in vain."""


class Rebalancer:
    """Called every ``every_s`` seconds with the rollout. ``forecasts``: by group, made before the
    step."""

    def __init__(
        self,
        job: Job,
        plan: RolloutPlan,
        forecasts: Sequence[Forecast],
        every_s: float,
    ) -> None:
        self._job = job
        self._plan = plan
        self._forecasts = forecasts
        self._every_s = every_s
        self._moved_s: dict[str, float] = {}
        self._began_s = asyncio.get_running_loop().time()
        self._first_s: float | None = None
        self._promised_s = -math.inf
        self._looked_s = -math.inf
        self._left_s = 0.0

    async def __call__(self, rollout: Rollout) -> None:
        if "decode" not in self._plan.cost.measured:
            return  # nothing to weigh a move with
        running = rollout.running
        if len(running) < 2 or not any(map(_accepts, running)):
            return  # nobody could take anything
        loads = self._look(rollout)
        spec = self._job.spec
        rules = MoveRules(
            time_weight=spec.objective.time_weight,
            reference=self._plan.reference,
            early_release=spec.scheduling.early_release,
            load_s=self._plan.load_s,
            latest_s=self._latest_s(),
        )
        # In a thread: where much is worth moving it takes tenths of a second, and streams go on.
        now_s = asyncio.get_running_loop().time()
        planned = await asyncio.to_thread(plan_moves, loads, self._plan.cost, rules)
        if self._promised_s == -math.inf:
            self._promised_s = now_s + planned.before.seconds
        actors = {actor.name: actor for actor in rollout.actors}  # some may have ended
        together: dict[tuple[str, str], list[str]] = {}
        for move in planned.moves:
            together.setdefault((move.source, move.target), []).append(move.sample)
        now_s = asyncio.get_running_loop().time()
        for (source, target), ids in together.items():
            self._moved_s |= dict.fromkeys(ids, now_s)
            await rollout.move(actors[source], actors[target], ids)

    def _latest_s(self) -> float:
        """Seconds from now by which all must be done: ``max_slowdown`` times what static scheduling
        would take from the first token on, or what was expected when it was first looked at. What
        moves themselves put off does not move it."""
        slowdown, reference = self._job.spec.objective.max_slowdown, self._plan.reference
        if slowdown is None or reference is None:
            return math.inf
        now_s = asyncio.get_running_loop().time()
        if self._first_s is None:
            self._first_s = now_s
        by_s = max(self._first_s + slowdown * reference[0], self._promised_s)
        return max(0.0, by_s - now_s)

    def remaining_s(self, rollout: Rollout) -> float:
        """Predicted seconds until the last sample that runs is done; since the last look they have
        gone by."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_s >= self._every_s:
            if self._looked_s > -math.inf and not any(map(_streams, rollout.running)):
                return self._left_s  # nothing has gone by
            self._look(rollout)
        return max(0.0, self._left_s - (now_s - self._looked_s))

    def _look(self, rollout: Rollout) -> Loads:
        """The actors that run and what they have left."""
        now_s = asyncio.get_running_loop().time()
        collector, actors = rollout.collector, rollout.running
        parts = [actor.places for actor in actors]
        owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        place = np.concatenate([np.zeros(0, np.int64), *parts])
        staying = ~collector.ended[place]
        moving = [collector.places[sample] for sample in rollout.moving]
        if moving:
            staying &= ~np.isin(place, moving)
        owner, place = owner[staying], place[staying]
        remaining, late = self._further(collector, place)
        self._looked_s = now_s
        self._left_s = self._plan.cost.decode_s(remaining.max(initial=0.0).item(), 0, 0)
        streaming = list(map(_streams, actors))
        starting_s = 0.0 if all(streaming) else self._starting_s(len(actors), now_s)
        capacity, size = self._plan.capacity, len(actors)
        return Loads(
            names=[actor.name for actor in actors],
            rows=np.full(size, capacity.max_batch),
            kv_tokens=np.full(size, capacity.kv_tokens),
            slowdown=np.array([self._slowdown(actor) for actor in actors], np.float64),
            ready_s=np.where(streaming, 0.0, starting_s),
            accept=np.array(list(map(_accepts, actors)), np.bool_),
            actor=owner,
            ids=[collector.ids[i] for i in place.tolist()],
            group=collector.group[place],
            prompt_tokens=collector.prompt_tokens[place],
            generated=collector.generated[place],
            remaining=remaining,
            late=late,
            moved_ago_s=now_s - self._moved(collector)[place],
        )

    def _further(
        self, collector: Collector, place: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What samples have left: expected, and should they be the last of all. By forecasts from
        before the step and what it says itself of the samples of each prompt."""
        left = np.flatnonzero(~collector.ended)
        live = np.flatnonzero(np.bincount(collector.group[left], minlength=len(self._forecasts)))
        row_of = np.full(len(self._forecasts), -1)
        row_of[live] = np.arange(len(live))
        row = row_of[collector.group[left]]
        ended = np.flatnonzero(collector.ended & (row_of[collector.group] >= 0))
        table = self._table.take(live).with_siblings(
            row_of[collector.group[ended]],
            collector.generated[ended],
            row,
            collector.generated[left],
        )
        return table.late(row_of[collector.group[place]], collector.generated[place], len(left))

    @cached_property
    def _table(self) -> ForecastTable:
        return ForecastTable.of(self._forecasts)

    def _moved(self, collector: Collector) -> NDArray[np.float64]:
        """When samples were last moved."""
        moved_s = np.full(len(collector.ids), -np.inf)
        for sample, at_s in self._moved_s.items():
            moved_s[collector.places[sample]] = at_s
        return moved_s

    def _starting_s(self, actors: int, now_s: float) -> float:
        """Seconds until an actor streams that does not yet: nearly none on a warm instance."""
        if self._job.dispatcher.warm("rollout") >= actors:
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


def _streams(actor: Actor) -> bool:
    return actor.call is not None and actor.call.began_s is not None


def _accepts(actor: Actor) -> bool:
    """Whether its call can take samples in."""
    return actor.call is not None and actor.call.began_s is not None and actor.call.steerable
