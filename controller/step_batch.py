"""A step's finished samples as the one object that training reads (``rlhfless.batches``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from controller.collector import FinishedSample
from controller.garbage import batch_name
from controller.job import Job
from controller.planning import StepPlan
from controller.scoring import ScoredSample, Scoring
from rlhfless.batches import Batch, write_batch
from rlhfless.messages import BatchRef


async def write_step_batch(
    job: Job, plan: StepPlan, finished: Sequence[FinishedSample], scoring: Scoring
) -> BatchRef:
    """Store the step's samples, in the plan's order, as one training batch; not synced yet."""
    batch = make_batch(plan, [scoring.scored(sample) for sample in finished])
    name = batch_name(job.id, plan.step)
    return await asyncio.to_thread(write_batch, job.objects, name, batch, durable=False)


def make_batch(plan: StepPlan, scored: Sequence[ScoredSample]) -> Batch:
    """Samples of the step, all or some, in the order given."""
    group_of = {sample.id: sample.group for sample in plan.samples}
    samples = [s.sample for s in scored]
    prompts = [plan.prompts[group_of[s.id]].tokens for s in samples]
    reference = [s.reference for s in scored if s.reference is not None]
    return Batch(
        prompt_tokens=np.concatenate([np.asarray(p, np.int32) for p in prompts]),
        prompt_lengths=np.array([len(p) for p in prompts], np.int32),
        response_tokens=np.concatenate([np.asarray(s.tokens, np.int32) for s in samples]),
        response_lengths=np.array([len(s.tokens) for s in samples], np.int32),
        rollout_logprobs=np.frombuffer(b"".join(s.logprobs for s in samples), "<f4"),
        rewards=np.array([s.score.total for s in scored], np.float32),
        groups=np.array([group_of[s.id] for s in samples], np.int32),
        truncated=np.array([s.reason == "length" for s in samples], np.bool_),
        reference_logprobs=np.frombuffer(b"".join(reference), "<f4") if reference else None,
    )
