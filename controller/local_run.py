"""A job on this machine: everything a run needs is set up here, and gone when it ends."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from typing import Any

from controller.books import Books, keeping
from controller.calibration import keeping_calibration
from controller.dataset import PromptOrder, Row, load_rows
from controller.deployments import deployments
from controller.dispatch import Dispatcher, RetryPolicy
from controller.job import Data, Event, Job, Observer, Prompt, StepSamples
from controller.job_store import JobStore
from controller.known import Known
from controller.ledger import Ledger
from controller.orchestrator import Orchestrator, Outcome
from controller.platforms.local import LocalPlatform
from controller.redis_server import open_redis
from controller.run_folder import RunFolder
from controller.summary import write_plot, write_summary
from controller.timeline import Timeline
from controller.tokenizer import PromptTokenizer
from rlhfless.objects import ObjectStore
from rlhfless.seeds import derive
from rlhfless.spec import DatasetSpec, JobSpec
from rlhfless.spec_file import dump_spec

NO_PLOT = "no progress.png: matplotlib is not installed; pip install 'rlhfless[plot]' brings it"


async def run_local(
    folder: RunFolder, spec: JobSpec, observe: Observer, known: Known | None = None
) -> tuple[Outcome, dict[str, Any]]:
    """Run the job in ``folder``, new or resumed; returns its outcome and summary. What it came to
    know of the job is in ``known`` however it ends."""
    known = known or Known()
    job_id = folder.run_id
    start_s = asyncio.get_running_loop().time()
    ledger = Ledger({d.function: d.price_usd_per_hour for d in deployments(spec)})
    async with (
        open_redis(folder.file("redis"), os.environ.get("REDIS_URL")) as redis,
        LocalPlatform(deployments(spec), ledger=ledger, folder=folder.file("logs")) as platform,
    ):
        journal = JobStore(redis, job_id)
        if not await journal.exists():
            await journal.create(dump_spec(spec))
        records, notes = await journal.records(), await journal.notes()
        known.found(records, notes)
        folder.rewrite_records(records)
        books = Books(ledger, notes, start_s)
        with known.until_closed(books):
            async with keeping(books, journal):
                for function in spec.functions():
                    await platform.scale(function, 1)
                timeline = Timeline()
                data = await asyncio.to_thread(load_data, spec)
                retries = random.Random(derive(spec.seed, "retries"))
                job = Job(
                    id=job_id,
                    spec=spec,
                    data=data,
                    objects=ObjectStore(folder.file("store")),
                    journal=journal,
                    dispatcher=Dispatcher(platform, timeline, retries, RetryPolicy()),
                    timeline=timeline,
                    ledger=ledger,
                    books=books,
                    observe=_recording(folder, known, observe),
                    keep_samples=_keeping(folder, spec, data),
                )
                orchestrator = Orchestrator(job, folder.file("weights"))
                job.observe(Event("plan", "", {"total_steps": orchestrator.total_steps}))
                async with keeping_calibration(folder, job):
                    outcome = await orchestrator.run()
        records = await journal.records()
        if records and not await asyncio.to_thread(write_plot, folder, records):
            observe(Event("notice", NO_PLOT))
        summary = await asyncio.to_thread(write_summary, folder, outcome, records)
    return outcome, summary


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


def _recording(folder: RunFolder, known: Known, observe: Observer) -> Observer:
    """Write each finished step's record to the folder before telling the watcher."""

    def record(event: Event) -> None:
        known.observe(event)
        if event.kind == "step":
            folder.add_record(event.data["record"])
        observe(event)

    return record


def _keeping(folder: RunFolder, spec: JobSpec, data: Data) -> Callable[[StepSamples], None]:
    def keep(done: StepSamples) -> None:
        texts = data.decode([sample.tokens for sample in done.samples])
        folder.write_samples(done, spec, texts)

    return keep
