"""Instances between their uses: let go when that costs less than keeping them, and started again
ahead of time (``scaling.release`` decides)."""

from __future__ import annotations

import asyncio

from controller.job import Job
from controller.planning import RolloutPlan
from rlhfless.messages import FunctionName
from scaling.release import Gap, ReleaseDecision, decide

REUSABLE: tuple[FunctionName, ...] = ("rollout", "reward", "reference")
"""Functions whose instances can be replaced by any other. A training instance holds the optimizer's
state: another would have to restore it first."""

MOST_TIME_WEIGHT = 0.95
"""Whoever wants time at any price still does not want instances that save none."""


class Standby:
    """For one step. ``after``: whether rollouts follow it. ``batch_tokens``: how many tokens its
    training will read, as far as is known."""

    def __init__(self, job: Job, plan: RolloutPlan, *, after: bool) -> None:
        self._job = job
        self._plan = plan
        self._after = after
        self.released = 0

    async def rollout_thins(self, running: int, remaining_s: float, batch_tokens: int) -> None:
        """An actor has nothing left, ``running`` others have, for ``remaining_s`` yet."""
        gap_s = remaining_s + self._plan.training_s(batch_tokens)
        await self._maybe("rollout", running, gap_s)

    async def between_steps(self, rollouts: int, batch_tokens: int) -> None:
        """Nothing is generated or scored until training is done: let go what would only wait, and
        have it back (``rollouts`` rollout instances) in time. Cancel it when training is done."""
        gap_s = self._plan.training_s(batch_tokens)
        starts: list[tuple[float, FunctionName]] = []
        for function in REUSABLE:
            if function not in self._job.spec.functions():
                continue
            decision = await self._maybe(function, 0, gap_s)
            if decision is not None and decision.release and decision.prewarm_s is not None:
                starts.append((decision.prewarm_s, function))
        waited_s = 0.0
        for at_s, function in sorted(starts):
            await asyncio.sleep(at_s - waited_s)
            waited_s = at_s
            count = rollouts if function == "rollout" else 1
            await self._job.dispatcher.platform.scale(function, count)

    async def _maybe(
        self, function: FunctionName, keep: int, gap_s: float
    ) -> ReleaseDecision | None:
        """Let instances above ``keep`` go if that pays over ``gap_s`` idle seconds."""
        spec, reference = self._job.spec, self._plan.reference
        if not spec.scheduling.early_release or reference is None:
            return None
        idle = self._job.dispatcher.warm(function) - keep
        if idle <= 0:
            return None
        gap = Gap(gap_s if self._after else None, self._plan.cost.cold_start_s(function))
        weight = min(spec.objective.time_weight, MOST_TIME_WEIGHT)
        decision = decide(gap, weight, *reference)
        if decision.release:
            await self._job.dispatcher.platform.scale(function, keep)
            self.released += idle
        return decision
