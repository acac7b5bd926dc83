"""A job from its first to its last step: evaluate, step, step, ..., evaluate, export.

One ``Orchestrator`` drives one job. It needs the platform, the stores and the loop's clock, and
keeps nothing that is not also in the journal, so ``run`` can be called again after any crash.
"""

from __future__ import annotations

import array
import asyncio
import hashlib
from dataclasses import dataclass
from typing import Literal

import msgspec

from controller.dataset import Position
from controller.evaluation import Evaluation, evaluate, remembered
from controller.exports import Exports
from controller.garbage import collect_step
from controller.job import Event, Job
from controller.journal import StepRecord
from controller.learning import PolicyState, decode_state
from controller.ledger import Usage
from controller.lookahead import Ahead
from controller.step import run_step
from rlhfless.errors import UserError
from rlhfless.messages import FunctionName

Status = Literal["succeeded", "paused"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``accuracy``: steps done -> held-out accuracy then. ``usage`` and ``wall_s``
    include earlier runs of a resumed job."""

    status: Status
    reason: str
    steps: int
    version: int
    before: Evaluation | None
    after: Evaluation | None
    accuracy: dict[int, float]
    usage: dict[FunctionName, Usage]
    wall_s: float


class Orchestrator:
    """Drives ``job``; ``export_folder`` receives the final model. None: the object store does, and
    the checkpoints before it."""

    def __init__(self, job: Job, export_folder: str | None) -> None:
        self.job = job
        self._accuracy: dict[int, float] = {}
        self._total_steps = job.data.order.num_steps(
            job.spec.training.prompts_per_step, job.spec.training.steps, job.spec.training.epochs
        )
        self._exports = Exports(job, export_folder, self._total_steps)

    @property
    def total_steps(self) -> int:
        return self._total_steps

    async def run(self) -> Outcome:
        """Run, or go on with, the job. Errors pass through; the journal is intact after them."""
        job = self.job
        loop = asyncio.get_running_loop()
        records = await job.journal.records()
        notes = await job.journal.notes()
        if len(records) > self._total_steps:
            raise UserError(
                f"{len(records)} steps are done already, more than {self._total_steps}",
                param="training.steps",
            )
        await self._same_data(notes)
        state = decode_state(await job.journal.policy_state())
        await job.journal.note(status="running")
        for record in records:
            job.observe(Event("restored", f"step {record.step + 1}", {"metrics": record.metrics}))
        if (reason := self._stopping()) is not None:
            version = records[-1].version if records else 0
            earlier = remembered(notes)
            self._accuracy = {step: found.accuracy for step, found in earlier.items()}
            return await self._pause(reason, len(records), version, earlier.get(0))
        await self._warm_up()

        before = await self._evaluation(0, notes, state)
        step_end_s = loop.time()
        position = Position()
        version = step = 0
        paused: str | None = None
        ahead: Ahead | None = None
        if records:
            position = msgspec.convert(records[-1].position, Position)
            version = records[-1].version
        metrics = records[-1].metrics if records else {}
        # Garbage is collected, and checkpoints are exported, beside the next step's rollout.
        async with asyncio.TaskGroup() as group:
            following: asyncio.Task[None] | None = None
            if (due := self._exports.due(records)) is not None:
                # Whoever was interrupted may not have come to it.
                following = group.create_task(self._exports.checkpoint(due), name="export")
            for step in range(len(records), self._total_steps):
                paused = self._stopping()
                if paused is None and self._wants_evaluation(step):
                    await self._evaluation(step, notes, state, version)
                    step_end_s = loop.time()
                    paused = self._stopping()
                if paused is not None:
                    break
                result = await run_step(
                    job, step, version, position, state, self._total_steps, step_end_s, ahead
                )
                step_end_s, version, state = result.end_s, result.record.version, result.state
                position, ahead = result.position, result.ahead
                metrics = result.record.metrics
                data = {"metrics": metrics, "record": result.record}
                job.observe(Event("step", f"step {step + 1}", data))
                if following is not None:
                    await following
                following = group.create_task(self._follow(result.record), name=f"follow-{step}")
        if paused is not None:
            return await self._pause(paused, step, version, before)

        after = await self._evaluation(self._total_steps, notes, state, version)
        await self._exports.final(version, metrics)
        await job.journal.note(status="succeeded")
        return self._outcome(
            "succeeded", "all steps done", self._total_steps, version, before, after
        )

    async def _warm_up(self) -> None:
        """Start cold functions side by side instead of one after the other at first use."""
        for function in self.job.spec.functions():
            count = self.job.max_actors if function == "rollout" else 1
            await self.job.dispatcher.platform.scale(function, count)

    async def _follow(self, record: StepRecord) -> None:
        """What is to be done after a step, and must be before the next one's is begun."""
        await self._collect(record.step, record.version)
        if self._exports.wants(record):
            await self._exports.checkpoint(record)

    async def _collect(self, step: int, version: int) -> None:
        job = self.job
        await asyncio.to_thread(
            collect_step,
            job.objects,
            job.id,
            step=step,
            version=version,
            keep_versions=job.spec.training.keep_versions,
            kv_bytes=job.spec.scheduling.kv_store_mb << 20,
        )

    async def _same_data(self, notes: dict[str, object]) -> None:
        """Refuse to go on with other prompts than the job began with."""
        digest = hashlib.blake2b(digest_size=16)
        for prompt in self.job.data.prompts:
            digest.update(array.array("q", (len(prompt.tokens), *prompt.tokens)).tobytes())
        data = digest.hexdigest()
        if notes.setdefault("data", data) != data:
            raise UserError(
                "the dataset has changed since the job began",
                param="dataset.path",
                hint="put the data back as they were, or start a new run",
            )
        await self.job.journal.note(data=data)

    async def _evaluation(
        self, step: int, notes: dict[str, object], state: PolicyState, version: int = 0
    ) -> Evaluation | None:
        """Evaluate once after so many steps; an evaluation made before an interruption is taken
        from the journal."""
        if self.job.spec.evaluation is None:
            return None
        name = f"eval_{step}"
        if name in notes:
            found = msgspec.convert(notes[name], Evaluation)
        else:
            found = await evaluate(self.job, step, version, state)
            await self.job.journal.note(**{name: msgspec.to_builtins(found)})
        self._accuracy[step] = found.accuracy
        self.job.observe(Event("evaluated", name, {"step": step, "evaluation": found}))
        return found

    def _wants_evaluation(self, steps: int) -> bool:
        """Whether to evaluate after so many steps, in the middle of the job."""
        spec = self.job.spec.evaluation
        return spec is not None and spec.every > 0 and steps > 0 and steps % spec.every == 0

    def _stopping(self) -> str | None:
        """Why there is to be no further step for the time being, if so."""
        return self._over_budget() or self.job.control.stopping()

    def _over_budget(self) -> str | None:
        """Why the budget allows no further step, if it does not."""
        budget = self.job.spec.budget
        now_s = asyncio.get_running_loop().time()
        used = sum(self.job.books.usage(now_s).values(), Usage())
        if budget.max_function_seconds is not None and used.held_s >= budget.max_function_seconds:
            return (
                f"{used.held_s:.0f} function-seconds held, "
                f"budget.max_function_seconds is {budget.max_function_seconds:g}"
            )
        if budget.max_usd is not None and used.usd is not None and used.usd >= budget.max_usd:
            return f"{used.usd:.2f} USD spent, budget.max_usd is {budget.max_usd:g}"
        return None

    async def _pause(
        self, reason: str, steps: int, version: int, before: Evaluation | None
    ) -> Outcome:
        over_budget = self._over_budget() is not None
        if over_budget and self.job.spec.budget.on_exceed == "fail":
            await self.job.journal.note(status="failed")
            raise UserError(
                f"the budget is used up after {steps} steps: {reason}",
                param="budget",
                hint="raise the budget, or set budget.on_exceed to pause: a paused job can go on",
            )
        await self.job.journal.note(status="paused")
        return self._outcome("paused", reason, steps, version, before, None)

    def _outcome(
        self,
        status: Status,
        reason: str,
        steps: int,
        version: int,
        before: Evaluation | None,
        after: Evaluation | None,
    ) -> Outcome:
        now_s = asyncio.get_running_loop().time()
        books = self.job.books
        return Outcome(
            status,
            reason,
            steps,
            version,
            before,
            after,
            self._accuracy,
            books.usage(now_s),
            books.wall_s(now_s),
        )
