"""A step of the job, top to bottom: plan, roll out, score, train, journal.

Every part of it can be repeated. A controller that dies anywhere in here is followed by one that
calls ``run_step`` for the same step again: finished samples and scores come from the journal, a
training call that was already applied returns its first result, and the commit happens once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import msgspec

from controller import learning, planning
from controller.collector import Collector, FinishedSample
from controller.dataset import Position
from controller.gathering import Gathered
from controller.generate import generate
from controller.job import Event, Job, StepSamples
from controller.journal import StepRecord
from controller.learning import PolicyState
from controller.ledger import Usage
from controller.lookahead import Ahead, in_a_moment, look_ahead
from controller.overlap import Overlap
from controller.requests import RolloutTask, train_request
from controller.scoring import Scoring
from controller.standby import Standby
from controller.step_batch import sync_step_batch, write_step_batch
from controller.step_metrics import StepFacts, StepTimes, step_metrics
from rlhfless.messages import TrainDone

KEEP_S = 3e-6
"""Between two writes of finished samples, for each sample of the step: 1.5 ms of 512 samples, which
nobody notices, 50 ms of 16,384, whose writes are ten times fewer by it."""


@dataclass(frozen=True)
class StepResult:
    """``end_s``: loop seconds up to which ``record``'s metrics account for time. ``ahead``: the
    next step's plan."""

    end_s: float
    record: StepRecord
    position: Position
    state: PolicyState
    ahead: Ahead | None


async def run_step(
    job: Job,
    step: int,
    version: int,
    position: Position,
    state: PolicyState,
    total_steps: int,
    start_s: float,
    ahead: Ahead | None = None,
) -> StepResult:
    """Train ``version`` into ``version + 1`` with one step's samples. Idempotent.

    ``start_s`` (loop seconds) is the end of the step before, so that the time between two steps is
    accounted for as well. ``ahead`` is this step's plan, if it was made during the step before.
    """
    loop = asyncio.get_running_loop()
    job.timeline.forget_before(start_s)

    # 1. Plan: prompts, samples, actors, and who generates what.
    plan = planning.plan_step(job, step, position) if ahead is None else ahead.step
    journal = await job.journal.step_journal(step)
    collector = Collector(plan.samples, journal.samples.values())
    fits = ahead is not None and len(ahead.rollout.assignment) <= job.max_actors
    if ahead is not None and fits and not journal.samples:
        rollout_plan = ahead.rollout
    else:
        left = [s for s in plan.samples if s.id not in journal.samples]
        warm = job.dispatcher.warm("rollout")
        rollout_plan = await asyncio.to_thread(
            planning.plan_rollout,
            job.spec,
            left,
            plan.prompts,
            state,
            warm,
            max_actors=job.max_actors,
        )
    actors = len(rollout_plan.assignment)
    job.observe(Event("rollout", f"step {step + 1}", {"actors": actors}))

    # 2.-4. Prefill and rollout; in its shadow rewards, reference and, with ``training.overlap``,
    # the beginning of the update.
    overlap = Overlap(job, plan, version, total_steps)
    on_scored = overlap.add if job.spec.training.overlap else None
    scoring = Scoring(job, step, plan.prompt_of, journal=journal, on_scored=on_scored)
    last = step + 1 == total_steps
    standby = Standby(job, rollout_plan, after=not last or job.spec.evaluation is not None)

    keep = Gathered(partial(job.journal.add_samples, step), every_s=KEEP_S * len(plan.samples))

    async def on_finished(samples: list[FinishedSample]) -> None:
        await keep.add(samples)
        await scoring.add(samples)

    async with asyncio.TaskGroup() as group:
        scored = group.create_task(scoring.run(), name="scoring")
        group.create_task(overlap.run(), name="overlap")
        await scoring.add(list(journal.samples.values()))
        task = RolloutTask(step, version)
        stats = await generate(
            job, task, collector, rollout_plan, plan.prompts, on_finished, standby
        )
        rollout_end_s = loop.time()
        await scoring.close()
        await scored
        scored_s = loop.time()

    # 5. One batch; advantages and the update happen where the policy is. Meanwhile the samples are
    # kept for people to read, the next step is planned, and instances that would only wait are let
    # go.
    job.observe(Event("train", f"step {step + 1}"))
    finished = collector.done()
    batch = await write_step_batch(job, plan, finished, scoring)
    position_after = msgspec.to_builtins(plan.position)
    prompt_of = plan.prompt_of
    samples = StepSamples(step, finished, scoring.scores, prompt_of)
    batch_tokens = sum(len(prompt_of[s.id].tokens) + len(s.tokens) for s in finished)
    looked_s = loop.time()
    look = partial(
        look_ahead,
        job,
        plan,
        rollout_plan,
        finished,
        stats,
        state,
        start_s=start_s,
        now_s=looked_s,
        last=last,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(job.keep_samples, samples), name="keep-samples")
        group.create_task(sync_step_batch(job, batch), name="sync-batch")
        looked = group.create_task(in_a_moment(look), name="look-ahead")
        between = group.create_task(
            standby.between_steps(looked, actors, batch_tokens), name="standby"
        )
        trained = await job.dispatcher.call(
            train_request(job, step, version, batch, position_after, total_steps), TrainDone
        )
        between.cancel()
    end_s = loop.time()
    stats.released = standby.released

    # 6. Journal.
    times = StepTimes(
        step_s=end_s - start_s,
        rollout_s=rollout_end_s - start_s,
        scoring_tail_s=scored_s - rollout_end_s,
        train_s=trained.train_s,
        overhead_s=end_s - start_s - job.timeline.covered_s(start_s, end_s),
        controller_s=end_s - start_s - job.timeline.called_s(start_s, end_s),
    )
    usage = job.ledger.usage(end_s, since_s=start_s)
    facts = StepFacts(
        step=step,
        samples=finished,
        scores=scoring.scores,
        rollout=stats,
        num_actors=actors,
        trained=trained,
        times=times,
        usage=sum(usage.values(), Usage()),
    )
    outlook = looked.result()
    judged = outlook.judged | learning.cost_errors(
        job.spec, rollout_plan, stats, batch_tokens, trained
    )
    starts = learning.cold_starts(job.ledger, job.timeline, looked_s, end_s)
    learned = learning.learn_training(job.spec, outlook.learned, batch_tokens, trained, starts)
    record = StepRecord(
        step=step,
        version=trained.version,
        metrics=step_metrics(job.spec, facts) | judged,
        position=position_after,
        plan=planning.describe(rollout_plan, stats, times.rollout_s),
        usage=usage,
    )
    books = job.books.notes(loop.time())
    await job.journal.commit(record, learning.encode_state(learned), **books)
    return StepResult(end_s, record, plan.position, learned, outlook.following)
