"""The calls of a profile, made as a run makes them, and what they report."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controller import learning, planning
from controller.call_contents import CallContents
from controller.collector import Collector, FinishedSample
from controller.dataset import Position
from controller.dispatch import Dispatcher
from controller.job import Surroundings
from controller.journal import Scores
from controller.learning import PolicyState
from controller.planning import StepPlan
from controller.profile.grid import RolloutPoint
from controller.requests import (
    RolloutTask,
    gradients_request,
    prefill_request,
    reference_request,
    reward_request,
    rollout_request,
    train_request,
)
from controller.rollout_stats import RolloutStats
from controller.scoring import ScoredSample
from controller.step_batch import make_batch
from rlhfless.batches import encode_batch, write_batch
from rlhfless.errors import InternalError
from rlhfless.messages import (
    Finished,
    GradientsDone,
    LogprobsDone,
    PrefillDone,
    RewardDone,
    RolloutDone,
    RolloutRequest,
    SampleTask,
    Tokens,
    TrainDone,
)
from rlhfless.seeds import derive

TOTAL_STEPS = 1_000_000
"""Of the learning rate's schedule, of which a profile is the beginning."""


@dataclass
class Calls:
    """Makes calls; ``stats``, ``state`` and ``publish_s`` gather what they report.

    ``instances``: rollout calls made side by side. ``version``: the policy's newest.
    """

    job: Surroundings
    dispatcher: Dispatcher
    instances: int
    stats: RolloutStats = field(default_factory=RolloutStats)
    state: PolicyState = field(default_factory=PolicyState)
    publish_s: list[float] = field(default_factory=list)
    version: int = 0
    _number: int = 0

    async def sample(self) -> tuple[StepPlan, list[FinishedSample]]:
        """The first step's samples, as the job itself would generate them."""
        plan = planning.plan_step(self.job, 0, Position())
        collector = Collector(plan.samples)
        ids = collector.all_remaining()
        task = RolloutTask(step=0, version=self.version)

        async def share(index: int) -> None:
            mine = ids[index :: self.instances]
            if mine:
                contents = CallContents(collector)
                request = rollout_request(self.job, task, *contents.add(mine), f"step-{index}")
                await self._rollout(request, collector, mine)

        await self._side_by_side(share)
        return plan, collector.done()

    async def rollout(self, point: RolloutPoint) -> None:
        """A call of ``point`` on each instance; no response ends before its limit. Prefill counts
        where prompts are as long as the job's: beside tokens it is rows that cost."""
        task, number = RolloutTask(step=0, version=self.version), self._next()

        async def one(index: int) -> None:
            prompts = self._prompts(point.prompt_tokens, point.prompts, number, index)
            request = self._request(task, point, prompts, f"{number}-{index}")
            await self._rollout(request, prefill=point.usual)

        await self._side_by_side(one)

    async def store(self, tokens: int, count: int) -> list[list[int]]:
        """Compute keys and values of made-up prompts (all but their last token, at version 0) and
        put them into the object store; returns the prompts, for ``load``."""
        task, number = RolloutTask(step=0, version=0), self._next()
        prompts = self._prompts(max(2, tokens), count, number)
        cuts = [[len(prompt) - 1] for prompt in prompts]
        request = prefill_request(self.job, task, prompts, cuts, f"store-{number}")
        done = await self.dispatcher.call(request, PrefillDone)
        self.stats.add_prefill(msgspec.structs.replace(done, tokens_computed=0))
        return prompts

    async def load(self, prompts: list[list[int]]) -> None:
        """Begin from keys and values that were stored."""
        cuts = {tuple(prompt): [len(prompt) - 1] for prompt in prompts}
        task = RolloutTask(step=0, version=0, cuts=cuts)
        point = RolloutPoint(len(prompts), 1, len(prompts[0]), 1)
        request = self._request(task, point, prompts, f"load-{self._next()}")
        await self._rollout(request, prefill=False)

    async def reward(self, plan: StepPlan, samples: Sequence[FinishedSample]) -> None:
        prompts = [plan.prompt_of[sample.id] for sample in samples]
        request = reward_request(self.job, self._next(), samples, prompts)
        await self.dispatcher.call(request, RewardDone)

    async def reference(self, plan: StepPlan, samples: Sequence[FinishedSample]) -> None:
        prompts = [plan.prompt_of[sample.id] for sample in samples]
        request = reference_request(self.job, self._next(), samples, prompts)
        await self.dispatcher.call(request, LogprobsDone)

    async def train(
        self, plan: StepPlan, samples: Sequence[FinishedSample], *, overlap: bool
    ) -> None:
        """Make the next version of ``samples`` (whole groups), whose rewards are made up. With
        ``overlap`` the first half of them goes ahead."""
        job, step = self.job, self._next()
        scored = [_scored(sample, place) for place, sample in enumerate(samples)]
        groups = [plan.group_of[sample.id] for sample in samples]
        if overlap and (half := _whole_groups(groups, len(groups) // 2)):
            part = encode_batch(make_batch(plan, scored[:half]))
            ahead = gradients_request(
                job, step, self.version, part, range(half), groups, TOTAL_STEPS
            )
            await self.dispatcher.call(ahead, GradientsDone)
        batch = make_batch(plan, scored)
        ref = await asyncio.to_thread(write_batch, job.objects, f"{job.id}/profile-{step}", batch)
        request = train_request(job, step, self.version, ref, {}, TOTAL_STEPS)
        done = await self.dispatcher.call(request, TrainDone)
        tokens = len(batch.prompt_tokens) + len(batch.response_tokens)
        self.state = learning.learn_training(job.spec, self.state, tokens, done)
        self.publish_s.append(done.publish_s)
        self.version = done.version

    # --- the rest ---------------------------------------------------------------------------------

    async def _side_by_side(self, one: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for index in range(self.instances):
                group.create_task(one(index), name=f"profile-{index}")

    def _request(
        self, task: RolloutTask, point: RolloutPoint, prompts: list[list[int]], shard: str
    ) -> RolloutRequest:
        samples = [
            SampleTask(
                id=str(row),
                prompt=row // point.group,
                seed=derive(self.job.spec.seed, "profile", shard, row),
                max_tokens=point.limit(row),
            )
            for row in range(point.rows)
        ]
        request = rollout_request(self.job, task, prompts, samples, f"profile-{shard}")
        endless = msgspec.structs.replace(request.sampling, stop_token_ids=[])
        return msgspec.structs.replace(request, sampling=endless)

    async def _rollout(
        self,
        request: RolloutRequest,
        collector: Collector | None = None,
        ids: Sequence[str] = (),
        prefill: bool = True,
    ) -> None:
        async for frame in self.dispatcher.stream(request):
            if isinstance(frame, RolloutDone):
                if frame.unfinished:
                    raise InternalError("a rollout call of the profile was not finished in time")
                nothing = {} if prefill else {"prefill_computed": 0}
                self.stats.add(msgspec.structs.replace(frame, **nothing))
            elif collector is not None and isinstance(frame, Tokens):
                collector.tokens(ids, frame)
            elif collector is not None and isinstance(frame, Finished):
                collector.finished(ids, frame)

    def _prompts(self, tokens: int, count: int, *which: int) -> list[list[int]]:
        """Made of what the dataset's prompts are made of."""
        rng = random.Random(derive(self.job.spec.seed, "profile-prompts", *which))
        prompts: list[list[int]] = []
        for _ in range(count):
            made: list[int] = []
            while len(made) < tokens:
                made += rng.choice(self.job.data.prompts).tokens
            prompts.append(made[:tokens])
        return prompts

    def _next(self) -> int:
        """Numbers make calls differ: a repeat would only be told the first result."""
        self._number += 1
        return self._number


def _scored(sample: FinishedSample, place: int) -> ScoredSample:
    """Rewards differ within a group; the reference is the policy itself."""
    return ScoredSample(sample, Scores(float(place % 2), []), sample.logprobs)


def _whole_groups(groups: Sequence[int], count: int) -> int:
    """The samples, at most ``count``, that end with a group."""
    while 0 < count < len(groups) and groups[count] == groups[count - 1]:
        count -= 1
    return count
