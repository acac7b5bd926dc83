"""While a step is trained: what was learned from its rollout, and the plan of the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller import learning, planning
from controller.collector import FinishedSample
from controller.job import Job
from controller.learning import PolicyState
from controller.planning import RolloutPlan, StepPlan
from controller.rollout_stats import RolloutStats
from scaling.release import SAFETY


@dataclass(frozen=True)
class Ahead:
    """A step planned before it begins."""

    step: StepPlan
    rollout: RolloutPlan


@dataclass(frozen=True)
class Outlook:
    """``judged``: metrics of how good the predictions were. ``following`` None: there is no next
    step."""

    learned: PolicyState
    judged: dict[str, float]
    following: Ahead | None

    def actors(self, otherwise: int) -> int:
        """Rollout instances the next step wants."""
        return otherwise if self.following is None else len(self.following.rollout.assignment)


AFTER_S = 0.02
"""Seconds. The train call goes out first: a computing thread holds up the loop that sends it."""


async def in_a_moment(look: Callable[[], Outlook]) -> Outlook:
    """``look`` in a thread, ``AFTER_S`` from now."""
    await asyncio.sleep(AFTER_S)
    return await asyncio.to_thread(look)


def look_ahead(
    job: Job,
    plan: StepPlan,
    rollout: RolloutPlan,
    finished: Sequence[FinishedSample],
    stats: RolloutStats,
    state: PolicyState,
    *,
    start_s: float,
    now_s: float,
    last: bool,
) -> Outlook:
    """Pure but for the ledger, so a thread may do it. ``start_s``: loop seconds of the step's
    beginning, ``now_s`` of the present."""
    learned, judged = learning.learn_rollout(
        job, rollout, plan.prompt_of, finished, stats, state, start_s, now_s
    )
    if last:
        return Outlook(learned, judged, None)
    following = planning.plan_step(job, plan.step + 1, plan.position)
    warm = len(rollout.assignment)
    prompts = plan.prompt_of
    tokens = sum(len(prompts[s.id].tokens) + len(s.tokens) for s in finished)
    following_rollout = planning.plan_rollout(
        job.spec,
        following.samples,
        following.prompts,
        learned,
        warm,
        head_start_s=rollout.training_s(tokens) / SAFETY,
        max_actors=job.max_actors,
    )
    return Outlook(learned, judged, Ahead(following, following_rollout))
