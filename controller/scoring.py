"""Rewards and reference log-probs of a step, gathered while the rollout still runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from controller.collector import FinishedSample
from controller.job import Job, Prompt
from controller.journal import Scores, StepJournal
from controller.requests import reference_request, reward_request
from controller.shadow import Shadow
from rlhfless.errors import InternalError
from rlhfless.messages import LogprobsDone, RewardDone

BATCHES_PER_STEP = 8
"""A scoring call is worth making for an eighth of a step's samples: small enough that little is
left to do when the rollout ends, large enough that calls cost little."""


@dataclass(frozen=True)
class ScoredSample:
    """A sample with all that training needs of it. ``reference``: float32 LE, one per token; None
    where the job has no KL penalty."""

    sample: FinishedSample
    score: Scores
    reference: bytes | None


class Scoring:
    """What is known of a step's finished samples. ``prompts``: sample id -> its prompt.

    Start ``run`` beside the rollout, ``add`` samples as they finish, ``close`` after the last;
    when ``run`` returns, ``scores`` (and ``reference`` if the job has a KL penalty) are complete.
    With a ``journal`` what was scored before is not scored again. ``on_scored`` gets each sample
    once, when nothing more will come to be known of it.
    """

    def __init__(
        self,
        job: Job,
        step: int,
        prompts: Mapping[str, Prompt],
        *,
        journal: StepJournal | None,
        on_scored: Callable[[Sequence[ScoredSample]], Awaitable[None]] | None = None,
    ) -> None:
        self._job = job
        self._step = step
        self._prompts = prompts
        self._keep = journal is not None
        self._on_scored = on_scored
        self._samples: dict[str, FinishedSample] = {}
        self.scores: dict[str, Scores] = {} if journal is None else dict(journal.scores)
        self.reference: dict[str, bytes] = {} if journal is None else dict(journal.reference)
        spec = job.spec
        min_batch = max(1, len(prompts) // BATCHES_PER_STEP)
        early = spec.scheduling.stream_scoring
        self._reward = Shadow(
            self._score, min_batch=min_batch, workers=spec.reward.max_instances, early=early
        )
        self._with_reference = spec.needs_reference() and self._keep
        self._reference = Shadow(
            self._refer, min_batch=min_batch, workers=spec.reference.max_instances, early=early
        )

    async def add(self, samples: Sequence[FinishedSample]) -> None:
        self._samples |= {sample.id: sample for sample in samples}
        await self._reward.add([s.id for s in samples if s.id not in self.scores])
        await self._reference.add([s.id for s in samples if s.id not in self.reference])
        await self._tell([sample.id for sample in samples])

    def scored(self, sample: FinishedSample) -> ScoredSample:
        """Once everything is known of it."""
        return ScoredSample(sample, self.scores[sample.id], self.reference.get(sample.id))

    async def close(self) -> None:
        await self._reward.close()
        await self._reference.close()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reward.run(), name="score-rewards")
            if self._with_reference:
                group.create_task(self._reference.run(), name="score-reference")

    async def _score(self, ids: Sequence[str]) -> None:
        # In a thread: the texts of an eighth of 16,384 samples take half a second to make.
        request = await asyncio.to_thread(reward_request, self._job, self._step, *self._batch(ids))
        done = await self._job.dispatcher.call(request, RewardDone)
        parts = zip(*done.scores, strict=True)
        new = {
            sample_id: Scores(total, list(part))
            for sample_id, total, part in zip(ids, done.totals, parts, strict=True)
        }
        if self._keep:
            await self._job.journal.add_scores(self._step, new)
        self.scores |= new
        await self._tell(ids)

    async def _refer(self, ids: Sequence[str]) -> None:
        samples, prompts = self._batch(ids)
        request = reference_request(self._job, self._step, samples, prompts)
        done = await self._job.dispatcher.call(request, LogprobsDone)
        if len(done.logprobs) != 4 * sum(len(s.tokens) for s in samples):
            raise InternalError("the reference returned another number of log-probs than tokens")
        new: dict[str, bytes] = {}
        offset = 0
        for sample in samples:
            end = offset + 4 * len(sample.tokens)
            new[sample.id] = done.logprobs[offset:end]
            offset = end
        await self._job.journal.add_reference(self._step, new)
        self.reference |= new
        await self._tell(ids)

    async def _tell(self, ids: Sequence[str]) -> None:
        if self._on_scored is None:
            return
        complete = [
            self.scored(self._samples[i])
            for i in ids
            if i in self.scores and (i in self.reference or not self._with_reference)
        ]
        if complete:
            await self._on_scored(complete)

    def _batch(self, ids: Sequence[str]) -> tuple[list[FinishedSample], list[Prompt]]:
        return [self._samples[i] for i in ids], [self._prompts[i] for i in ids]
