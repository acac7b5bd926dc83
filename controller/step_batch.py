"""A step's finished samples as the one object that training reads (``rlhfless.batches``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

import numpy as np

from controller.collector import FinishedSample
from controller.garbage import batch_name
from controller.job import Job
from controller.planning import StepPlan
from controller.scoring import ScoredSample, Scoring
from rlhfless.batches import Batch, write_batch
from rlhfless.errors import TransientError
from rlhfless.messages import BatchRef


async def write_step_batch(
    job: Job, plan: StepPlan, finished: Sequence[FinishedSample], scoring: Scoring
) -> BatchRef:
    """Store the step's samples, in the plan's order, as one training batch; not synced yet."""
    batch = make_batch(plan, [scoring.scored(sample) for sample in finished])
    name = batch_name(job.id, plan.step)
    return await asyncio.to_thread(write_batch, job.objects, name, batch, durable=False)


async def sync_step_batch(job: Job, batch: BatchRef) -> None:
    """Make it survive a power cut. Raises ``TransientError`` if it is not there any more."""
    try:
        await asyncio.to_thread(job.objects.sync, batch.name)
    except FileNotFoundError as error:
        raise TransientError(
            f"{batch.name} was deleted while it was trained on",
            hint="does another controller run this job?",
        ) from error


def make_batch(plan: StepPlan, scored: Sequence[ScoredSample]) -> Batch:
    """Samples of the step, all or some, in the order given."""
    samples = [s.sample for s in scored]
    groups = [plan.group_of[s.id] for s in samples]
    prompts = {g: np.asarray(plan.prompts[g].tokens, np.int32) for g in dict.fromkeys(groups)}
    lengths = [len(s.tokens) for s in samples]
    reference = [s.reference for s in scored if s.reference is not None]
    return Batch(
        prompt_tokens=np.concatenate([prompts[g] for g in groups]),
        prompt_lengths=np.array([len(prompts[g]) for g in groups], np.int32),
        response_tokens=np.fromiter(
            chain.from_iterable(s.tokens for s in samples), np.int32, sum(lengths)
        ),
        response_lengths=np.array(lengths, np.int32),
        rollout_logprobs=np.frombuffer(b"".join(s.logprobs for s in samples), "<f4"),
        rewards=np.array([s.score.total for s in scored], np.float32),
        groups=np.array(groups, np.int32),
        truncated=np.array([s.reason == "length" for s in samples], np.bool_),
        reference_logprobs=np.frombuffer(b"".join(reference), "<f4") if reference else None,
    )
