"""A run of a job put together, whoever runs it: the command line in a folder, or a replica.

``execute`` takes a job from its journal, new or not, to its next end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from controller.books import Books, keeping
from controller.control import UNHINDERED, Control
from controller.dataset import PromptOrder, Row, load_rows
from controller.dispatch import Dispatcher, RetryPolicy
from controller.job import Data, Event, Job, Observer, Prompt, StepSamples
from controller.journal import Journal
from controller.known import Known
from controller.ledger import Ledger
from controller.orchestrator import Orchestrator, Outcome
from controller.platforms.base import Platform
from controller.timeline import Timeline
from controller.tokenizer import PromptTokenizer
from rlhfless.objects import ObjectStore
from rlhfless.seeds import derive
from rlhfless.spec import DatasetSpec, JobSpec


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where a job runs and what it leaves where. ``platform`` books into ``ledger``; both are the
    caller's to close. ``export_folder`` receives the final model (None: the object store, and the
    checkpoints before it)."""

    id: str
    spec: JobSpec
    platform: Platform
    ledger: Ledger
    journal: Journal
    objects: ObjectStore
    export_folder: str | None
    observe: Observer
    keep_samples: Callable[[Data], Callable[[StepSamples], None]]
    """Given the job's data, what keeps the samples of each step."""
    control: Control = UNHINDERED
    around: Callable[[Job], AbstractAsyncContextManager[None]] = lambda _: nullcontext()
    """Entered before the first step, left when the run ends, however it ends."""


async def execute(execution: Execution, known: Known) -> Outcome:
    """Run the job, or go on with it. What came to be known of it is in ``known`` however it
    ends."""
    spec, ledger, journal = execution.spec, execution.ledger, execution.journal
    start_s = asyncio.get_running_loop().time()
    records, notes = await journal.records(), await journal.notes()
    known.found(records, notes)
    books = Books(ledger, notes, start_s)

    def observe(event: Event) -> None:
        known.observe(event)
        execution.observe(event)

    with known.until_closed(books):
        async with keeping(books, journal):
            for function in spec.functions():
                await execution.platform.scale(function, 1)
            timeline = Timeline()
            data = await asyncio.to_thread(load_data, spec)
            retries = random.Random(derive(spec.seed, "retries"))
            job = Job(
                id=execution.id,
                spec=spec,
                data=data,
                objects=execution.objects,
                journal=journal,
                dispatcher=Dispatcher(execution.platform, timeline, retries, RetryPolicy()),
                timeline=timeline,
                ledger=ledger,
                books=books,
                observe=observe,
                keep_samples=execution.keep_samples(data),
                control=execution.control,
            )
            orchestrator = Orchestrator(job, execution.export_folder)
            observe(Event("plan", "", {"total_steps": orchestrator.total_steps}))
            async with execution.around(job):
                return await orchestrator.run()


def load_data(spec: JobSpec, *, with_evaluation: bool = True) -> Data:
    """Read, render and tokenize the datasets (in a thread: transformers takes its time)."""
    tokenizer = PromptTokenizer.load(spec.model)
    prompts = _prompts(spec, spec.dataset, "dataset", tokenizer)
    evaluation = spec.evaluation if with_evaluation else None
    return Data(
        tokenizer=tokenizer,
        stop_token_ids=tokenizer.stop_token_ids(spec.rollout.stop),
        prompts=prompts,
        order=PromptOrder(len(prompts), spec.seed, spec.dataset.shuffle),
        evaluation=(
            []
            if evaluation is None
            else _prompts(spec, evaluation.dataset, "evaluation.dataset", tokenizer)
        ),
    )


def _prompts(
    spec: JobSpec, dataset: DatasetSpec, param: str, tokenizer: PromptTokenizer
) -> list[Prompt]:
    rows: list[Row] = load_rows(dataset, param)
    encoded: Mapping[int, list[int]] = tokenizer.encode(
        rows, max_tokens=spec.rollout.max_tokens, overlong=dataset.overlong, param=param
    )
    return [
        Prompt(key=f"{param}/{index}", row=rows[index], tokens=tuple(tokens))
        for index, tokens in encoded.items()
    ]
