"""Accuracy on the held-out set: a rollout and rewards without training."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from controller import planning
from controller.collector import Collector, FinishedSample, Sample
from controller.generate import generate
from controller.job import Event, Job
from controller.learning import PolicyState
from controller.requests import RolloutTask
from controller.scoring import Scoring
from rlhfless.seeds import derive


class EvaluatedSample(msgspec.Struct, frozen=True):
    prompt: Any
    completion: str
    reward: float


class Evaluation(msgspec.Struct, frozen=True):
    """``accuracy``: share of responses whose total reward reaches the threshold."""

    version: int
    accuracy: float
    reward_mean: float
    length_mean: float
    samples: list[EvaluatedSample]


def remembered(notes: Mapping[str, Any]) -> dict[int, Evaluation]:
    """The evaluations among a job's notes (``eval_12``: after twelve steps), by steps done."""
    return {
        int(name.removeprefix("eval_")): msgspec.convert(value, Evaluation)
        for name, value in notes.items()
        if name.startswith("eval_")
    }


SHOWN = 3
"""Samples kept with an evaluation, the same prompts and seeds each time."""


async def evaluate(job: Job, step: int, version: int, state: PolicyState) -> Evaluation:
    """Sample the evaluation set with ``version`` and score it. The seeds do not depend on the
    version, so before and after answer the same questions with the same luck."""
    spec = job.spec.evaluation
    assert spec is not None
    samples = [
        Sample(
            id=f"eval-{version}/{row}/{k}",
            group=row,
            prompt=prompt.tokens,
            seed=derive(job.spec.seed, "eval", row, k),
            max_tokens=job.spec.rollout.max_tokens,
        )
        for row, prompt in enumerate(job.data.evaluation)
        for k in range(spec.samples_per_prompt)
    ]
    prompt_of = {sample.id: job.data.evaluation[sample.group] for sample in samples}
    prompts = job.data.evaluation
    plan = await asyncio.to_thread(
        planning.plan_rollout,
        job.spec,
        samples,
        prompts,
        state,
        job.dispatcher.warm("rollout"),
    )
    actors = len(plan.assignment)
    job.observe(Event("evaluate", f"version {version}", {"actors": actors}))
    collector = Collector(samples)
    scoring = Scoring(job, step, prompt_of, journal=None)

    async def on_finished(finished: list[FinishedSample]) -> None:
        await scoring.add(finished)

    async with asyncio.TaskGroup() as group:
        group.create_task(scoring.run(), name="scoring")
        task = RolloutTask(step, version, name="eval", temperature=spec.temperature)
        await generate(job, task, collector, plan, prompts, on_finished)
        await scoring.close()

    finished = collector.done()
    totals = [scoring.scores[s.id].total for s in finished]
    texts = job.data.decode([s.tokens for s in finished[:SHOWN]])
    return Evaluation(
        version=version,
        accuracy=sum(t >= spec.threshold for t in totals) / len(totals),
        reward_mean=sum(totals) / len(totals),
        length_mean=sum(len(s.tokens) for s in finished) / len(finished),
        samples=[
            EvaluatedSample(prompt_of[s.id].row.prompt, text, total)
            for s, text, total in zip(finished, texts, totals, strict=False)
        ],
    )
