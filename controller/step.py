"""A step of the job, top to bottom: plan, roll out, score, train, journal.

Every part of it can be repeated. A controller that dies anywhere in here is followed by one that
calls ``run_step`` for the same step again: finished samples and scores come from the journal, a
training call that was already applied returns its first result, and the commit happens once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from controller import planning
from controller.collector import Collector, FinishedSample
from controller.dataset import Position
from controller.garbage import batch_name
from controller.job import Event, Job
from controller.job_store import Scores, StepRecord
from controller.planning import PolicyState, StepPlan
from controller.requests import train_request
from controller.rollout import RolloutTask, run_rollout
from controller.scoring import Scoring
from controller.step_metrics import StepTimes, step_metrics
from rlhfless.batches import Batch, write_batch
from rlhfless.messages import BatchRef, TrainDone


@dataclass(frozen=True)
class StepResult:
    """``end_s``: loop seconds up to which ``record``'s metrics account for time."""

    end_s: float
    record: StepRecord
    samples: list[FinishedSample]
    scores: dict[str, Scores]
    plan: StepPlan
    state: PolicyState


async def run_step(
    job: Job,
    step: int,
    version: int,
    position: Position,
    state: PolicyState,
    total_steps: int,
    start_s: float,
) -> StepResult:
    """Train ``version`` into ``version + 1`` with one step's samples. Idempotent.

    ``start_s`` (loop seconds) is the end of the step before, so that the time between two steps is
    accounted for as well.
    """
    loop = asyncio.get_running_loop()
    job.timeline.forget_before(start_s)

    # 1. Plan: prompts, samples, actors, and who generates what.
    plan = planning.plan_step(job, step, position)
    journal = await job.journal.step_journal(step)
    collector = Collector(plan.samples, journal.samples.values())
    left = [s for s in plan.samples if s.id not in journal.samples]
    decision = None
    assignment: Sequence[Sequence[str]] = []
    if left:
        keys = [prompt.key for prompt in plan.prompts]
        decision = planning.assign(job.spec, left, keys, state, job.dispatcher.warm("rollout"))
        assignment = decision.chosen.assignment
    job.observe(Event("rollout", f"step {step + 1}", {"actors": len(assignment)}))

    # 2.-4. Prefill and rollout; rewards and reference in its shadow.
    scoring = Scoring(job, step, plan.prompt_of, journal=journal)

    async def on_finished(samples: list[FinishedSample]) -> None:
        await job.journal.add_samples(step, samples)
        await scoring.add(samples)

    async with asyncio.TaskGroup() as group:
        group.create_task(scoring.run(), name="scoring")
        await scoring.add(list(journal.samples.values()))
        stats = await run_rollout(
            job, RolloutTask(step=step, version=version), collector, assignment, on_finished
        )
        rollout_end_s = loop.time()
        await scoring.close()
    scored_s = loop.time()

    # 5. One batch; advantages and the update happen where the policy is.
    job.observe(Event("train", f"step {step + 1}"))
    finished = collector.done()
    batch = await write_step_batch(job, plan, finished, scoring)
    position_after = plan.position
    trained = await job.dispatcher.call(
        train_request(job, step, version, batch, msgspec.to_builtins(position_after), total_steps),
        TrainDone,
    )
    end_s = loop.time()

    # 6. Journal.
    times = StepTimes(
        step_s=end_s - start_s,
        rollout_s=rollout_end_s - start_s,
        scoring_tail_s=scored_s - rollout_end_s,
        train_s=trained.train_s,
        overhead_s=end_s - start_s - job.timeline.covered_s(start_s, end_s),
    )
    record = StepRecord(
        step=step,
        version=trained.version,
        metrics=step_metrics(
            job,
            step,
            finished,
            scoring.scores,
            stats,
            trained,
            times,
            job.ledger.total(end_s, since_s=start_s),
            len(assignment),
        ),
        position=msgspec.to_builtins(position_after),
        plan={} if decision is None else planning.describe(decision),
    )
    state = planning.learn(job.spec, plan, finished, stats, state)
    await job.journal.commit(record, planning.encode_state(state))
    return StepResult(end_s, record, finished, scoring.scores, plan, state)


async def write_step_batch(
    job: Job, plan: StepPlan, finished: Sequence[FinishedSample], scoring: Scoring
) -> BatchRef:
    """Store the step's samples, in the plan's order, as one training batch."""
    group_of = {sample.id: sample.group for sample in plan.samples}
    prompts = [plan.prompts[group_of[s.id]].tokens for s in finished]
    reference = scoring.reference
    batch = Batch(
        prompt_tokens=np.concatenate([np.asarray(p, np.int32) for p in prompts]),
        prompt_lengths=np.array([len(p) for p in prompts], np.int32),
        response_tokens=np.concatenate([np.asarray(s.tokens, np.int32) for s in finished]),
        response_lengths=np.array([len(s.tokens) for s in finished], np.int32),
        rollout_logprobs=np.frombuffer(b"".join(s.logprobs for s in finished), "<f4"),
        rewards=np.array([scoring.scores[s.id].total for s in finished], np.float32),
        groups=np.array([group_of[s.id] for s in finished], np.int32),
        truncated=np.array([s.reason == "length" for s in finished], np.bool_),
        reference_logprobs=(
            np.frombuffer(b"".join(reference[s.id] for s in finished), "<f4") if reference else None
        ),
    )
    name = batch_name(job.id, plan.step)
    return await asyncio.to_thread(write_batch, job.objects, name, batch)
