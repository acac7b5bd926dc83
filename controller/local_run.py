"""A job run from this machine: everything it needs is set up here, and gone when it ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from controller.calibration import keeping_calibration
from controller.collecting import collect_rarely
from controller.deployments import deployments, new_ledger
from controller.execution import Execution, execute
from controller.integrations.reporting import reporting
from controller.job import Data, Event, Observer, StepSamples
from controller.job_store import JobStore
from controller.known import Known
from controller.orchestrator import Outcome
from controller.places import HERE, Place, open_platform
from controller.redis_server import open_redis
from controller.run_folder import RunFolder
from controller.summary import write_plot, write_summary
from rlhfless.objects import ObjectStore
from rlhfless.spec import JobSpec
from rlhfless.spec_file import dump_spec

NO_PLOT = "no progress.png: matplotlib is not installed; pip install 'rlhfless[plot]' brings it"


async def run_local(
    folder: RunFolder,
    spec: JobSpec,
    observe: Observer,
    known: Known | None = None,
    place: Place = HERE,
) -> tuple[Outcome, dict[str, Any]]:
    """Run the job in ``folder``, new or resumed; returns its outcome and summary. What it came to
    know of the job is in ``known`` however it ends."""
    collect_rarely()
    ledger = new_ledger(deployments(spec))
    async with (
        reporting(spec, folder.run_id, folder.path, observe) as told,
        open_redis(folder.file("redis"), os.environ.get("REDIS_URL")) as redis,
        open_platform(place, spec, folder, ledger) as platform,
    ):
        journal = JobStore(redis, folder.run_id)
        if not await journal.exists():
            await journal.create(dump_spec(spec))
        folder.rewrite_records(await journal.records())
        execution = Execution(
            id=folder.run_id,
            spec=spec,
            platform=platform,
            ledger=ledger,
            journal=journal,
            objects=ObjectStore(folder.file("store")),
            export_folder=folder.file("weights"),
            observe=_recording(folder, told.observing(observe)),
            keep_samples=partial(_keeping, folder, spec),
            around=partial(keeping_calibration, folder),
        )
        outcome = await execute(execution, known or Known())
        told.ended(outcome)
        records = await journal.records()
        if records and not await asyncio.to_thread(write_plot, folder, records):
            observe(Event("notice", NO_PLOT))
        summary = await asyncio.to_thread(write_summary, folder, outcome, records)
    return outcome, summary


def _recording(folder: RunFolder, observe: Observer) -> Observer:
    """Write each finished step's record to the folder before telling the watcher."""

    def record(event: Event) -> None:
        if event.kind == "step":
            folder.add_record(event.data["record"])
        observe(event)

    return record


def _keeping(folder: RunFolder, spec: JobSpec, data: Data) -> Callable[[StepSamples], None]:
    def keep(done: StepSamples) -> None:
        texts = data.decode([sample.tokens for sample in done.samples])
        folder.write_samples(done, spec, texts)

    return keep
