"""From a rollout's plan to its samples: prefill what is shared, stream, watch over it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from controller.actor import OnFinished
from controller.collector import Collector
from controller.job import Job, Prompt
from controller.planning import RolloutPlan
from controller.rebalance import Rebalancer
from controller.requests import LOOK_S, RolloutTask, prefill_request
from controller.rollout import Rollout
from controller.rollout_stats import RolloutStats
from controller.standby import Standby
from prefix_cache.plan import PrefillCall, PrefixPlan
from rlhfless.errors import RlhflessError
from rlhfless.messages import PrefillDone

_log = logging.getLogger(__name__)

LOOKS = 50
"""At a rollout, in its predicted time: what changes between two of them is a fiftieth of it, and
looks at a long rollout of many samples cost less than they gain."""
SAMPLES = 512
"""Samples that are looked at so often. The more there are the rarer: a look, and the reports it is
made from, cost in proportion to them. Of four times as many half as often."""
MOST_S = 5.0
"""Seconds between looks at most: a prediction may be wrong."""

FRAMES_PER_S = 1000
"""Of tokens, from all actors together: a frame costs a controller about 0.15 ms, however few tokens
it brings (``docs/scale.md``). Where actors are many each tells its tokens more rarely, and has more
of them to lose: a thousand actors a second's."""


async def generate(
    job: Job,
    task: RolloutTask,
    collector: Collector,
    plan: RolloutPlan,
    prompts: Sequence[Prompt],
    on_finished: OnFinished,
    standby: Standby | None = None,
) -> RolloutStats:
    """Generate what ``plan`` assigns; ``prompts[g]`` is the prompt of group g. With ``standby``,
    instances may be let go as their actors run dry."""
    look_s = _look_s(plan, len(collector.samples))
    rebalancer = Rebalancer(job, plan, [plan.forecasts[prompt.key] for prompt in prompts], look_s)
    prefills: list[PrefillDone] = []
    flush_s = min(look_s, len(plan.assignment) / FRAMES_PER_S)
    task = replace(task, progress_s=look_s, flush_s=flush_s)
    if plan.prefixes is not None:
        cuts = zip(prompts, plan.prefixes.cuts, strict=True)
        task = replace(
            task,
            cuts={prompt.tokens: list(ends) for prompt, ends in cuts},
            load=plan.prefixes.load,
            publish=plan.prefixes.publish,
        )
        prefills = await _prefill(job, task, prompts, plan.prefixes)

    async def thinned(rollout: Rollout) -> None:
        if standby is not None:
            remaining_s = partial(rebalancer.remaining_s, rollout)
            tokens = collector.num_tokens()
            await standby.rollout_thins(rollout.num_running, remaining_s, tokens)

    async def watch(rollout: Rollout) -> None:
        if job.spec.scheduling.migrate:
            await rebalancer(rollout)
        await thinned(rollout)

    rollout = Rollout(job, task, collector, on_finished, thinned)
    stats = await rollout.run(plan.assignment, watch, look_s)
    for done in prefills:
        stats.add_prefill(done)
    return stats


def _look_s(plan: RolloutPlan, num_samples: int) -> float:
    """Seconds between reports of the engines, and between looks at them."""
    predicted_s = None if plan.decision is None else plan.decision.chosen.seconds
    rarer = math.sqrt(max(1.0, num_samples / SAMPLES))
    return min(MOST_S, rarer * max(LOOK_S, (predicted_s or 0.0) / LOOKS))


async def _prefill(
    job: Job, task: RolloutTask, prompts: Sequence[Prompt], plan: PrefixPlan
) -> list[PrefillDone]:
    """Compute what several actors need, side by side, before any of them begins. A call that fails
    costs time only: the actors compute what they do not find."""

    async def prefill(call: PrefillCall, number: int) -> PrefillDone | None:
        tokens = [prompts[index].tokens for index in call.prompts]
        request = prefill_request(job, task, tokens, call.cuts, f"{task.name}-prefill-{number}")
        try:
            return await job.dispatcher.call(request, PrefillDone)
        except RlhflessError as error:  # if it was no accident, the rollout will say so
            _log.warning("prompts are not prefilled ahead: %s", error.detail)
            return None

    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(prefill(call, number), name=f"prefill-{number}")
            for number, call in enumerate(plan.prefill)
        ]
    return [done for call in calls if (done := call.result()) is not None]
