"""Instances between their uses: let go when that costs less than keeping them, and started again
ahead of time (``scaling.release`` decides)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller.job import Job
from controller.lookahead import Outlook
from controller.planning import RolloutPlan
from rlhfless.messages import FunctionName
from scaling.release import Gap, decide, prewarm_at

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
        self._restarted = False
        self.released = 0

    async def rollout_thins(
        self, running: int, remaining_s: Callable[[], float], batch_tokens: int
    ) -> None:
        """To be asked now and then while a rollout runs: ``running`` actors have something left,
        for ``remaining_s`` yet. Instances that would only wait are let go, and started again when
        it is time for the next rollout, as many as this one had (what the next wants is not known
        yet); after that none is let go again."""
        if self._restarted or not self._weighs:
            return
        gap_s = remaining_s() + self._plan.training_s(batch_tokens)
        due = prewarm_at(gap_s, self._plan.cost.cold_start_s("rollout")) == 0.0
        if due and self.released and self._after:
            self._restarted = True
            count = len(self._plan.assignment)
            await self._job.dispatcher.platform.scale("rollout", count)
        else:
            await self._maybe("rollout", running, gap_s)

    async def between_steps(
        self, looked: asyncio.Task[Outlook], actors: int, batch_tokens: int
    ) -> None:
        """Nothing is generated or scored until training is done: let go what would only wait, and
        have in time what the next step wants (``actors`` rollout instances if there is none, for
        the evaluation). Cancel it when training is done."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        gap_s = self._plan.training_s(batch_tokens)
        functions = [f for f in REUSABLE if f in self._job.spec.functions()]
        for function in functions:
            await self._maybe(function, 0, gap_s)
        rollouts = (await asyncio.shield(looked)).actors(actors)  # a cancel must not reach it
        needed = {**dict.fromkeys(functions, 1), "rollout": rollouts}
        if not self._after or self._plan.reference is None:
            return
        starts = {f: prewarm_at(gap_s, self._plan.cost.cold_start_s(f)) for f in functions}
        for function in sorted(functions, key=lambda f: starts[f]):
            await asyncio.sleep(began_s + starts[function] - loop.time())
            if self._job.dispatcher.warm(function) < needed[function]:
                await self._job.dispatcher.platform.scale(function, needed[function])

    @property
    def _weighs(self) -> bool:
        """Whether instances may be let go, and enough was measured to say when that pays."""
        measured = self._plan.reference is not None and "training" in self._plan.cost.measured
        return self._job.spec.scheduling.early_release and measured

    async def _maybe(self, function: FunctionName, keep: int, gap_s: float) -> None:
        """Let instances above ``keep`` go if that pays over ``gap_s`` idle seconds."""
        reference = self._plan.reference
        if reference is None or not self._weighs:
            return
        gap = Gap(gap_s if self._after else None, self._plan.cost.cold_start_s(function))
        weight = min(self._job.spec.objective.time_weight, MOST_TIME_WEIGHT)
        if not decide(gap, weight, *reference).release:
            return
        idle = self._job.dispatcher.warm(function) - keep
        if idle > 0:
            await self._job.dispatcher.platform.scale(function, keep)
            self.released += idle if function == "rollout" else 0
