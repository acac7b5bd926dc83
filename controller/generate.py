"""From a rollout's plan to its samples: prefill what is shared, stream, watch over it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from controller.actor import OnFinished
from controller.collector import Collector
from controller.job import Job, Prompt
from controller.planning import RolloutPlan
from controller.rebalance import Rebalancer
from controller.requests import RolloutTask, prefill_request
from controller.rollout import Rollout
from controller.rollout_stats import RolloutStats
from controller.standby import Standby
from prefix_cache.plan import PrefixPlan
from rlhfless.messages import PrefillDone


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
    forecasts = {g: plan.forecasts[prompt.key] for g, prompt in enumerate(prompts)}
    rebalancer = Rebalancer(job, plan, forecasts, plan.load_s)
    prefills: list[PrefillDone] = []
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
            tokens = sum(
                len(sample.prompt) + collector.num_tokens(name)
                for name, sample in collector.samples.items()
            )
            remaining_s = partial(rebalancer.remaining_s, rollout)
            await standby.rollout_thins(len(rollout.running), remaining_s, tokens)

    async def watch(rollout: Rollout) -> None:
        if job.spec.scheduling.migrate:
            await rebalancer(rollout)
        await thinned(rollout)

    rollout = Rollout(job, task, collector, on_finished, thinned)
    stats = await rollout.run(plan.assignment, watch)
    for done in prefills:
        stats.add_prefill(done)
    if standby is not None:
        stats.released += standby.released
    return stats


async def _prefill(
    job: Job, task: RolloutTask, prompts: Sequence[Prompt], plan: PrefixPlan
) -> list[PrefillDone]:
    """Compute what several actors need, side by side, before any of them begins."""
    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(
                job.dispatcher.call(
                    prefill_request(
                        job,
                        task,
                        [prompts[index].tokens for index in call.prompts],
                        call.cuts,
                        f"{task.name}-prefill-{number}",
                    ),
                    PrefillDone,
                ),
                name=f"prefill-{number}",
            )
            for number, call in enumerate(plan.prefill)
        ]
    return [call.result() for call in calls]
