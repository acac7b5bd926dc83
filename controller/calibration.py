"""What a run has measured, as constants for the simulator: ``calibration.json`` of its folder."""

from __future__ import annotations

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
    load_measurements,
    merged,
    save_measurements,
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
        publish_s=_metric(records, "time/publish_s"),
        controller_s=_metric(records, "time/controller_s"),
        source=f"the run {job.id}",
        model=job.spec.model.path,
    )
    with suppress(UserError):  # there is no earlier one, or it is unreadable
        found = merged(load_measurements(folder.file(FILE)), found)
    save_measurements(folder.file(FILE), found)


def calibrate(
    state: PolicyState,
    timeline: Timeline,
    *,
    publish_s: Sequence[float],
    controller_s: Sequence[float],
    source: str,
    model: str,
) -> Measurements:
    """What the policies have learned (``state``) and what their calls have cost beside.

    ``publish_s``: of train calls; ``controller_s``: of steps. Fits are robust, the rest are
    medians. What was not measured is left out. First calls are among those that count; what they
    loaded is not taken for work.
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
            publish_s=median(publish_s) if publish_s else None,
            weights_bytes=_version_bytes(state),
        ),
        reward=by_work(timeline.worked["reward"], REWARD_PRIOR),
        reference=by_work(timeline.worked["reference"], REFERENCE_PRIOR),
        cold_start_s=_by_function(cost, ""),
        load_s=_by_function(cost, " load"),
        call_s=carrying(timeline),
        step_s=median(controller_s) if controller_s else None,
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
    that waited for an instance do not count. Of a rollout call, beyond what its result accounts
    for: what the engine does around its loop is no part of prefill or decoding."""
    return {
        function: median(call.end_s - call.start_s - _accounted_s(call) for call in calls)
        for function, calls in timeline.worked.items()
        if calls
    }


def _accounted_s(call: CallSpan) -> float:
    if call.function == "rollout" and call.work > 0:
        return min(call.busy_s, call.load_s + call.work)
    return call.busy_s


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


def _version_bytes(state: PolicyState) -> int | None:
    """Of the newest pulls."""
    pulled = [call.features[1] for call in state.costs.calls.get("weights_pull", [])]
    return round(median(pulled)) if pulled else None


def _metric(records: Sequence[StepRecord], name: str) -> list[float]:
    """Of the steps that have it: an older release may have made some."""
    return [record.metrics[name] for record in records if name in record.metrics]


def _measured(cost: CostModel, kind: Kind) -> Linear | None:
    return _two(cost.coefficients[kind]) if kind in cost.measured else None


def _by_function(cost: CostModel, suffix: str) -> dict[FunctionName, float]:
    known = cost.cold_starts
    return {f: known[f + suffix] for f in FUNCTION_NAMES if f + suffix in known}


def _two(coefficients: Sequence[float]) -> Linear:
    first, second = coefficients
    return first, second


def _three(coefficients: Sequence[float]) -> tuple[float, float, float]:
    first, second, third = coefficients
    return first, second, third
