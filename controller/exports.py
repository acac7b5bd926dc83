"""What becomes of the models a job makes: a folder at its end, or checkpoints in the object store.

Exporting needs a training instance, so it happens when that has nothing else to do: beside the next
step's rollout, and at the job's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from controller.garbage import is_checkpoint
from controller.job import Event, Job
from controller.journal import StepRecord
from controller.requests import checkpoint_request, export_request
from rlhfless.checkpoints import MANIFEST, checkpoint_prefix
from rlhfless.errors import RlhflessError
from rlhfless.messages import ExportDone


class Exports:
    """With a ``folder`` the final model goes there. Without, it goes to the object store, and so
    does that of every ``training.checkpoint_every``-th step."""

    def __init__(self, job: Job, folder: str | None, total_steps: int) -> None:
        self._job = job
        self._folder = folder
        self._total_steps = total_steps

    def due(self, records: Sequence[StepRecord]) -> StepRecord | None:
        """Of a job's committed steps the newest whose model is to be a checkpoint, while there are
        steps to come."""
        found = [record for record in records if self.wants(record)]
        return found[-1] if found else None

    def wants(self, record: StepRecord) -> bool:
        """Whether the step's model is to be a checkpoint, but for the last one's."""
        steps, every = record.step + 1, self._job.spec.training.checkpoint_every
        return (
            self._folder is None
            and steps < self._total_steps
            and is_checkpoint(steps, every, self._total_steps)
        )

    async def checkpoint(self, record: StepRecord) -> None:
        """Export the model that a step made, unless it is there. Where that fails the job goes on:
        its weights are safe, and the next checkpoint may succeed."""
        job, steps = self._job, record.step + 1
        try:
            if not await asyncio.to_thread(self._exists, steps):
                await self._to_store(steps, record.version, record.metrics, final=False)
        except RlhflessError as error:
            data = {"step": steps}
            message = f"the checkpoint of step {steps} could not be written: {error.detail}"
            job.observe(Event("notice", message, data))
        else:
            self._observe(steps, record.version)

    async def final(self, version: int, metrics: Mapping[str, float]) -> None:
        """Export the model that the job ends with; ``metrics`` of its last step."""
        job, steps = self._job, self._total_steps
        if self._folder is None:
            job.observe(Event("export", checkpoint_prefix(job.id, steps)))
            await self._to_store(steps, version, metrics, final=True)
            self._observe(steps, version)
        else:
            job.observe(Event("export", self._folder))
            request = export_request(job, steps, version, self._folder)
            await job.dispatcher.call(request, ExportDone)

    async def _to_store(
        self, steps: int, version: int, metrics: Mapping[str, float], *, final: bool
    ) -> None:
        request = checkpoint_request(self._job, steps, version, metrics, final=final)
        await self._job.dispatcher.call(request, ExportDone)

    def _exists(self, steps: int) -> bool:
        return self._job.objects.exists(f"{checkpoint_prefix(self._job.id, steps)}/{MANIFEST}")

    def _observe(self, steps: int, version: int) -> None:
        data = {"step": steps, "version": version}
        self._job.observe(Event("checkpoint", f"checkpoint of step {steps}", data))
