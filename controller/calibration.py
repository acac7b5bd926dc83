"""What a run has measured, as constants for the simulator: ``calibration.json`` of its folder."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from statistics import median

from controller.job import Job
from controller.journal import StepRecord
from controller.learning import PolicyState, decode_state
from controller.run_folder import RunFolder
from controller.timeline import CallSpan, Timeline
from rlhfless.errors import RlhflessError, UserError
from rlhfless.measurements import (
    Linear,
    Measurements,
    RolloutMeasured,
    TrainingMeasured,
    as_json,
    load_measurements,
    merged,
)
from rlhfless.messages import FUNCTION_NAMES, FunctionName
from scaling import cost_model, regression
from scaling.cost_model import CostModel, Kind

REWARD_PRIOR: Linear = (2e-3, 1e-4)
"""Seconds of a call and of a sample: a check of a text in another process."""
REFERENCE_PRIOR: Linear = (5e-3, 5e-5)
"""Seconds of a call and of a token, as a prefill."""
FILE = "calibration.json"


@asynccontextmanager
async def keeping_calibration(folder: RunFolder, job: Job) -> AsyncGenerator[None]:
    """Leaves what was measured in the folder when the block ends, however it ends, once a step was
    committed. What only an earlier run of the job has measured stays."""
    try:
        yield
    except BaseException:
        with suppress(RlhflessError):  # what went wrong before matters more
            await _write(folder, job)
        raise
    await _write(folder, job)


async def _write(folder: RunFolder, job: Job) -> None:
    records, state = await job.journal.records(), await job.journal.policy_state()
    if not records:
        return
    found = calibrate(
        decode_state(state),
        job.timeline,
        records,
        source=f"the run {job.id}",
        model=job.spec.model.path,
    )
    with suppress(UserError):  # there is no earlier one, or it is unreadable
        found = merged(load_measurements(folder.file(FILE)), found)
    folder.write(FILE, json.dumps(as_json(found), indent=2) + "\n")


def calibrate(
    state: PolicyState,
    timeline: Timeline,
    records: Sequence[StepRecord],
    *,
    source: str,
    model: str,
) -> Measurements:
    """What the policies have learned (``state``) and what their calls have cost beside.

    Seconds of an unhurried call: fits are robust, the rest are medians. What was not measured is
    left out. The first step's calls are among them; what they loaded is not counted as work.
    """
    cost, engine = cost_model.fit(state.costs), state.engine
    return Measurements(
        source=source,
        machine=this_machine(),
        date=datetime.now(UTC).date().isoformat(),
        model=model,
        rollout=RolloutMeasured(
            decode=None if "decode" not in cost.measured else _three(cost.coefficients["decode"]),
            prefill=_measured(cost, "prefill"),
            weights_pull=_measured(cost, "weights_pull"),
            kv_load=_measured(cost, "kv_load"),
            kv_publish=_measured(cost, "kv_publish"),
            max_batch=engine.max_batch or None,
            kv_capacity_tokens=engine.kv_capacity or None,
            kv_token_bytes=engine.kv_token_bytes or None,
        ),
        training=TrainingMeasured(
            update=_measured(cost, "training"),
            gradients=by_work(timeline.worked["training"], _two(cost_model.PRIORS["training"])),
            publish_s=_median(record.metrics.get("time/publish_s") for record in records),
        ),
        reward=by_work(timeline.worked["reward"], REWARD_PRIOR),
        reference=by_work(timeline.worked["reference"], REFERENCE_PRIOR),
        cold_start_s=_by_function(cost, ""),
        load_s=_by_function(cost, " load"),
        call_s=carrying(timeline),
        step_s=_median(record.metrics.get("time/controller_s") for record in records),
    )


def by_work(calls: Iterable[CallSpan], prior: Linear) -> Linear | None:
    """Seconds of a call, and of each unit of its work; None without calls that tell it."""
    measured = [(call.work, call.busy_s - call.load_s) for call in calls if call.work > 0]
    if not measured:
        return None
    rows = [(1.0, work) for work, _ in measured]
    return _two(regression.fit(rows, [seconds for _, seconds in measured], prior))


def carrying(timeline: Timeline) -> dict[FunctionName, float]:
    """Seconds of a call beyond the function's work on it, by function: the median, so that calls
    that waited for an instance do not count."""
    return {
        function: median(call.end_s - call.start_s - call.busy_s for call in calls)
        for function, calls in timeline.worked.items()
        if calls
    }


def this_machine() -> str:
    """In words: cores and kind."""
    return f"{os.cpu_count()} cores, {_processor()}, {platform.system()}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            named = [line for line in file if line.startswith("model name")]
    except OSError:  # not Linux
        named = []
    name = named[0].partition(":")[2].strip() if named else platform.processor()
    return name or platform.machine()


def _measured(cost: CostModel, kind: Kind) -> Linear | None:
    return _two(cost.coefficients[kind]) if kind in cost.measured else None


def _by_function(cost: CostModel, suffix: str) -> dict[FunctionName, float]:
    known = cost.cold_starts
    return {f: known[f + suffix] for f in FUNCTION_NAMES if f + suffix in known}


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _two(coefficients: Sequence[float]) -> Linear:
    first, second = coefficients
    return first, second


def _three(coefficients: Sequence[float]) -> tuple[float, float, float]:
    first, second, third = coefficients
    return first, second, third
