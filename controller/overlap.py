"""Training begun in the shadow of the rollout (``training.overlap``).

While the last samples of a step are generated the training instance would stand idle. Groups whose
samples are all scored go there in a few calls, one at a time, and it does with them what the train
call would have to do. What it has done stays in its memory, for that call alone: nothing here
changes a result, and nothing needs a journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from controller.job import Job
from controller.planning import StepPlan
from controller.requests import gradients_request
from controller.scoring import ScoredSample
from controller.step_batch import make_batch
from rlhfless.batches import encode_batch
from rlhfless.errors import RlhflessError
from rlhfless.messages import GradientsDone, GradientsRequest

CALLS_PER_STEP = 8
"""A call is worth making for an eighth of a step's samples: smaller ones fill the passes of a
training instance badly, larger ones leave it idle for longer. What is less waits for more no longer
than the call before took: in a long tail nothing more may come."""


class Overlap:
    """Training ahead of one step's train call. ``add`` samples as they are scored.

    ``run`` beside the rollout: it returns when every sample is scored (what is left then is as well
    done by the train call) and no call is under way, so the train call finds the instance free.
    """

    def __init__(self, job: Job, plan: StepPlan, version: int, total_steps: int) -> None:
        self._job = job
        self._plan = plan
        self._version = version
        self._total_steps = total_steps
        self._places = {sample.id: place for place, sample in enumerate(plan.samples)}
        self._groups = [sample.group for sample in plan.samples]
        self._places_of: dict[int, list[int]] = {}
        for place, group in enumerate(self._groups):
            self._places_of.setdefault(group, []).append(place)
        self._missing = {group: len(places) for group, places in self._places_of.items()}
        self._scored: dict[int, ScoredSample] = {}  # by place in the step's batch
        self._ready: list[int] = []  # places, whole groups
        self._sent: set[int] = set()
        self._worth = max(1, len(plan.samples) // CALLS_PER_STEP)
        self._patience_s: float | None = None
        self._keep_s = job.spec.training.idle_timeout_s / 2
        self._changed = asyncio.Condition()

    async def add(self, scored: Sequence[ScoredSample]) -> None:
        async with self._changed:
            for one in scored:
                place = self._places[one.sample.id]
                if place in self._scored:
                    continue
                self._scored[place] = one
                group = self._groups[place]
                self._missing[group] -= 1
                if not self._missing[group]:
                    self._ready += self._places_of[group]
            if self._ready or self._all_scored():
                self._changed.notify_all()

    async def run(self) -> None:
        if not self._job.spec.training.overlap:
            return
        loop = asyncio.get_running_loop()
        while places := await self._take():
            request = await asyncio.to_thread(self._request, places)
            start_s = loop.time()
            try:
                done = await self._job.dispatcher.call(request, GradientsDone)
            except RlhflessError:
                return  # costs time only; if it was no accident, the train call will say so
            self._patience_s = loop.time() - start_s
            self._sent.update(places)
            if not done.num_samples:
                return  # the version was made before this controller began
            if done.num_samples < len(self._sent):  # an instance was lost with its share
                self._ready += self._sent
                self._sent.clear()

    async def _take(self) -> list[int]:
        """Samples for the next call; empty when all are scored.

        Those of a group that was sent before where nothing else is ready for so long that the
        instance, and what it holds, would soon time out.
        """
        async with self._changed:
            for worth, wait_s in ((self._worth, self._patience_s), (1, self._keep_s)):
                try:
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait_for(partial(self._has, worth))
                    break
                except TimeoutError:
                    continue
            if self._all_scored():
                return []
            places, self._ready = self._ready, []
            return sorted(places) or self._places_of[self._groups[min(self._sent)]]

    def _has(self, worth: int) -> bool:
        return self._all_scored() or len(self._ready) >= worth

    def _all_scored(self) -> bool:
        return len(self._scored) == len(self._groups)

    def _request(self, places: Sequence[int]) -> GradientsRequest:
        part = encode_batch(make_batch(self._plan, [self._scored[place] for place in places]))
        return gradients_request(
            self._job,
            self._plan.step,
            self._version,
            part,
            places,
            self._groups,
            self._total_steps,
        )
