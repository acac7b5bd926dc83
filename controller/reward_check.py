"""Try a job's rewards on a few rows, through the same functions and messages as the job itself."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controller.call_contents import CallContents
from controller.collector import Collector, FinishedSample, Sample
from controller.deployments import deployments
from controller.dispatch import Dispatcher, RetryPolicy
from controller.execution import load_data
from controller.homes import cannot_make_temporary_folder
from controller.job import Prompt, Surroundings
from controller.ledger import Ledger
from controller.platforms.local import LocalOptions, LocalPlatform
from controller.requests import RolloutTask, reward_request, rollout_request
from controller.timeline import Timeline
from rlhfless.messages import Finished, RewardDone, Tokens
from rlhfless.objects import ObjectStore
from rlhfless.seeds import derive
from rlhfless.spec import JobSpec


@dataclass(frozen=True)
class CheckedRow:
    """A row's prompt, what was scored, and each reward's verdict (None: does not apply)."""

    prompt: Any
    completion: str
    parts: list[float | None]
    total: float


@dataclass(frozen=True)
class RewardCheck:
    """``seconds``: of the reward call, first imports included."""

    rows: list[CheckedRow]
    seconds: float


async def check_rewards(spec: JobSpec, num_rows: int, completion: str | None) -> RewardCheck:
    """Score ``num_rows`` rows: with ``completion`` as every response, or with responses sampled
    from the job's model. Raises what the rewards raise."""
    wanted = ("reward",) if completion is not None else ("reward", "rollout")
    with _temporary_folder() as folder:
        async with LocalPlatform(
            [d for d in deployments(spec) if d.function in wanted],
            ledger=Ledger(),
            folder=folder,
            # Without a model to run there is no torch to import, unless a reward does itself.
            options=LocalOptions(zygote="rollout" in wanted),
        ) as platform:
            for function in wanted:
                await platform.scale(function, 1)  # type: ignore[arg-type]
            data = await asyncio.to_thread(load_data, spec, with_evaluation=False)
            timeline = Timeline()
            job = Surroundings(
                id="reward-check",
                spec=spec,
                data=data,
                objects=ObjectStore(folder + "/store"),
            )
            dispatcher = Dispatcher(platform, timeline, random.Random(0), RetryPolicy())
            prompts = data.prompts[:num_rows]
            if completion is None:
                samples = await _generate(job, dispatcher, prompts)
            else:
                tokens = data.tokenizer.tokens_of(completion)
                samples = [_given(str(i), tokens) for i in range(len(prompts))]
            loop = asyncio.get_running_loop()
            start_s = loop.time()
            done = await dispatcher.call(reward_request(job, 0, samples, prompts), RewardDone)
            seconds = loop.time() - start_s
            texts = data.decode([s.tokens for s in samples])
    parts = [list(part) for part in zip(*done.scores, strict=True)]
    rows = [
        CheckedRow(prompt.row.prompt, text, part, total)
        for prompt, text, part, total in zip(prompts, texts, parts, done.totals, strict=True)
    ]
    return RewardCheck(rows, seconds)


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="rlhfless-check-")
    except OSError as error:
        raise cannot_make_temporary_folder(error) from error


def _given(name: str, tokens: list[int]) -> FinishedSample:
    return FinishedSample(
        id=name, tokens=tokens, logprobs=b"\0" * 4 * len(tokens), reason="stop", versions=[]
    )


async def _generate(
    job: Surroundings, dispatcher: Dispatcher, prompts: Sequence[Prompt]
) -> list[FinishedSample]:
    collector = Collector(
        Sample(str(i), i, p.tokens, derive(job.spec.seed, "check", i), job.spec.rollout.max_tokens)
        for i, p in enumerate(prompts)
    )
    ids = collector.all_remaining()
    contents = CallContents(collector)
    request = rollout_request(job, RolloutTask(step=0, version=0), *contents.add(ids), "check")
    async for frame in dispatcher.stream(request):
        if isinstance(frame, Tokens):
            collector.tokens(ids, frame)
        elif isinstance(frame, Finished):
            collector.finished(ids, frame)
    return collector.done()
