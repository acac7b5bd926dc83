"""What must hold after a job, whatever happened on the way (``docs/simulator.md`` lists it)."""

from __future__ import annotations

import asyncio
import math

import msgspec

from controller.dataset import Position
from controller.evaluation import remembered
from controller.journal import StepRecord
from controller.learning import decode_state
from rlhfless.versions import latest_version, read_manifest
from simulator.fuzz.expected import Expected
from simulator.fuzz.trace import Violation
from simulator.fuzz.world import World

_CLOSE = 1e-6


async def check_journal(world: World) -> None:
    """At any time: committed steps are a chain from the first, each with its own version, and
    every one of them was trained."""
    records = await world.journal.records()
    for step, record in enumerate(records):
        if (record.step, record.version) != (step, step + 1):
            raise Violation(f"record {step} is of step {record.step}, version {record.version}")
        position = msgspec.convert(record.position, Position)
        if position != world.expected.positions[step]:
            raise Violation(f"step {step} leaves the data at {position}")
        _check_metrics(world.expected, record)
    decode_state(await world.journal.policy_state())
    _check_versions(world, at_least=len(records))


async def check_end(world: World) -> None:
    """After the job has succeeded."""
    await check_journal(world)
    expected = world.expected
    records = await world.journal.records()
    if len(records) != expected.num_steps:
        raise Violation(f"{len(records)} of {expected.num_steps} steps are committed")
    notes = await world.journal.notes()
    if notes.get("status") != "succeeded":
        raise Violation(f"the job's status is {notes.get('status')}")
    if world.functions.exported != expected.num_steps:
        raise Violation(f"version {world.functions.exported} is exported")
    _check_evaluations(world, notes)
    if world.case.alone:
        for step in range(expected.num_steps):
            left = await world.journal.step_journal(step)
            if left.samples or left.scores or left.reference:
                raise Violation(f"the journal of step {step} is left behind")
        _check_books(world, notes)
    outcome = next(run.outcome for run in reversed(world.runs) if run.outcome is not None)
    if (outcome.steps, outcome.version) != (expected.num_steps, expected.num_steps):
        raise Violation(f"the outcome is {outcome}")


def _check_versions(world: World, at_least: int) -> None:
    """Versions are a chain from 1; each has one maker, the train call of its step."""
    made = world.functions.trained
    latest = latest_version(world.objects, "job")
    if sorted(made) != list(range(1, latest + 1)) or latest < at_least:
        raise Violation(f"versions {sorted(made)} were made; {at_least} steps are committed")
    for version, makers in made.items():
        wanted = f"step-{version - 1:06d}/training/train"
        if makers != [wanted]:
            raise Violation(f"version {version} was made by {makers}, not by {wanted}")
    if latest and read_manifest(world.objects, "job", latest) is None:
        raise Violation(f"version {latest}, the newest, is not in the store")


def _check_metrics(expected: Expected, record: StepRecord) -> None:
    samples = expected.steps[record.step]
    metrics = record.metrics
    totals = [expected.total(sample) for sample in samples]
    lengths = [sample.length for sample in samples]
    should = {
        "step": record.step + 1,
        "reward/mean": sum(totals) / len(totals),
        "response_length/mean": sum(lengths) / len(lengths),
        "response_length/max": max(lengths),
    }
    for name, value in should.items():
        if not math.isclose(metrics[name], value, abs_tol=_CLOSE):
            raise Violation(f"{name} of step {record.step} is {metrics[name]}, not {value}")
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise Violation(f"{name} of step {record.step} is {value}")
        if name.startswith(("time/", "functions/", "rollout/", "weights/")) and value < -_CLOSE:
            raise Violation(f"{name} of step {record.step} is {value}")


def _check_evaluations(world: World, notes: dict[str, object]) -> None:
    found = remembered(notes)
    expected = world.expected
    if found.keys() != expected.evaluations.keys():
        raise Violation(f"evaluated after {sorted(found)} of {sorted(expected.evaluations)} steps")
    for steps, evaluation in found.items():
        accuracy = expected.accuracy(steps)
        if (evaluation.version, evaluation.accuracy) != (steps, accuracy):
            raise Violation(f"after {steps} steps {evaluation}, not {accuracy}")


def _check_books(world: World, notes: dict[str, object]) -> None:
    """The journal has no more seconds than were held; no less either, but for what dies with a
    controller or is lost on the way to the journal."""
    now_s = asyncio.get_running_loop().time()
    held_s = sum(run.ledger.held_s(now_s) for run in world.runs)
    usage = msgspec.convert(notes.get("usage", {}), dict[str, dict[str, float | None]])
    phases = ("cold_s", "busy_s", "idle_s")
    booked_s = sum(each.get(name) or 0.0 for each in usage.values() for name in phases)
    if booked_s > held_s + _CLOSE:
        raise Violation(f"{booked_s} s are booked, of {held_s} s that were held")
    lossless = not any(kind.startswith("journal") for kind in world.chance.counts)
    closed = all(run.life.alive for run in world.runs)
    if lossless and closed and not math.isclose(booked_s, held_s, abs_tol=_CLOSE):
        raise Violation(f"{booked_s} s are booked, {held_s} s were held")
