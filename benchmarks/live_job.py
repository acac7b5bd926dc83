"""A whole job on the local platform, with functions of one's choice, and its books afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.books import Books
from controller.calibration import calibrate
from controller.deployments import deployments
from controller.dispatch import Dispatcher, RetryPolicy
from controller.execution import load_data
from controller.job import Event, Job, Prompt, StepSamples
from controller.job_store import JobStore
from controller.learning import decode_state
from controller.ledger import Ledger, Span, Usage
from controller.orchestrator import Orchestrator
from controller.platforms.local import LocalOptions, LocalPlatform
from controller.redis_server import open_redis
from controller.timeline import Timeline
from rlhfless.measurements import Measurements
from rlhfless.messages import FunctionName
from rlhfless.objects import ObjectStore
from rlhfless.seeds import derive
from rlhfless.spec import JobSpec
from rlhfless.spec_file import dump_spec


@dataclass(frozen=True)
class Step:
    """A step that was made: ``metrics`` (``docs/metrics.md``), its plan as the journal has it, its
    responses and prompts by sample, ``[start_s, end_s)`` in loop seconds, and the CPU seconds of
    the controller's process."""

    metrics: dict[str, float]
    plan: dict[str, Any]
    responses: dict[str, tuple[int, ...]]
    prompts: dict[str, Prompt]
    start_s: float
    end_s: float
    controller_cpu_s: float


@dataclass(frozen=True)
class Made:
    """A finished job: its steps, every instance's life, and what its calls took."""

    steps: list[Step]
    ledger: Ledger = field(repr=False)
    measured: Measurements

    def usage(self, steps: list[Step]) -> dict[FunctionName, Usage]:
        """Of instances during ``steps``, in seconds a step."""
        total: dict[FunctionName, Usage] = {}
        for step in steps:
            for function, used in self.ledger.usage(step.end_s, step.start_s).items():
                total[function] = total.get(function, Usage()) + used
        return {
            name: Usage(*(s / len(steps) for s in (u.cold_s, u.busy_s, u.idle_s)))
            for name, u in total.items()
        }

    def spans(self, step: Step) -> list[Span]:
        """What instances did during a step."""
        return [
            Span(
                s.instance,
                s.function,
                s.phase,
                max(s.start_s, step.start_s),
                min(s.end_s, step.end_s),
            )
            for s in self.ledger.spans
            if s.end_s > step.start_s and s.start_s < step.end_s
        ]


def make(spec: JobSpec, folder: str, apps: Mapping[FunctionName, str] | None = None) -> Made:
    """Run a job to its end; ``folder`` gets its store, journal and logs."""
    os.makedirs(folder)
    made = asyncio.run(_make(spec, folder, LocalOptions(apps=apps or {})))
    with open(os.path.join(folder, "plans.jsonl"), "w", encoding="utf-8") as plans:
        plans.writelines(json.dumps(step.plan) + "\n" for step in made.steps)
    return made


async def _make(spec: JobSpec, folder: str, options: LocalOptions) -> Made:
    loop = asyncio.get_running_loop()
    ledger = Ledger()
    steps: list[Step] = []
    kept: dict[int, StepSamples] = {}
    begins_s, begins_cpu_s = loop.time(), time.process_time()

    def keep(done: StepSamples) -> None:
        kept[done.step] = done

    def observe(event: Event) -> None:
        nonlocal begins_s, begins_cpu_s
        if event.kind == "step":
            record, now_s, cpu_s = event.data["record"], loop.time(), time.process_time()
            done = kept.pop(record.step)
            responses = {sample.id: tuple(sample.tokens) for sample in done.samples}
            prompts = dict(done.prompts)
            # A step begins where the one before it ended: the time between them is its own.
            begins_s = max(begins_s, now_s - record.metrics["time/step_s"])
            plan = {"step": record.step + 1, **record.plan}
            used_s = cpu_s - begins_cpu_s
            steps.append(Step(record.metrics, plan, responses, prompts, begins_s, now_s, used_s))
            begins_s, begins_cpu_s = now_s, cpu_s

    def file(name: str) -> str:
        return os.path.join(folder, name)

    async with (
        open_redis(file("redis"), None) as redis,
        LocalPlatform(
            deployments(spec), ledger=ledger, folder=file("logs"), options=options
        ) as platform,
    ):
        journal = JobStore(redis, "bench")
        await journal.create(dump_spec(spec))
        timeline = Timeline()
        retries = random.Random(derive(spec.seed, "retries"))
        job = Job(
            id="bench",
            spec=spec,
            data=await asyncio.to_thread(load_data, spec),
            objects=ObjectStore(file("store")),
            journal=journal,
            dispatcher=Dispatcher(platform, timeline, retries, RetryPolicy()),
            timeline=timeline,
            ledger=ledger,
            books=Books(ledger, await journal.notes(), loop.time()),
            observe=observe,
            keep_samples=keep,
        )
        await Orchestrator(job, file("weights")).run()
        measured = calibrate(
            decode_state(await journal.policy_state()),
            timeline,
            publish_s=[step.metrics["time/publish_s"] for step in steps],
            controller_s=[step.metrics["time/controller_s"] for step in steps],
            source="a benchmark's run",
            model=spec.model.path,
        )
    return Made(steps, ledger, measured)
