"""From a job spec, and what a user knows of its workload, to what a simulation works on."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from controller.job import Prompt
from rlhfless.errors import UserError
from rlhfless.measurements import Measurements
from rlhfless.spec import DatasetSpec, JobSpec
from simulator.drafting import Drafting
from simulator.model_shape import ModelShape, load_shape
from simulator.prompts import PromptLengths, make_prompts, read_prompts
from simulator.scenario import Scenario
from simulator.workload import LengthModel, Lengths, PromptKeys, Workload
from simulator.workload_file import (
    DEFAULT,
    PRESETS,
    PromptTokensSpec,
    WorkloadSpec,
    load_workload,
)
from simulator.workload_fit import fit_lengths
from simulator.workload_trace import Group, LengthTrace, read_trace

ASSUMED_PROMPTS = 7_473
"""Rows of GSM8K's training set."""
ASSUMED_EVALUATION_PROMPTS = 256
ASSUMED_PROMPT_TOKENS = 200
"""Median, beside what prompts share."""
ASSUMED_SHARE = 0.25
"""Median of the lengths, as a share of ``rollout.max_tokens``."""


@dataclass(frozen=True)
class CutWorkload:
    """Lengths of ``inner``, cut at ``cap`` as generation does."""

    inner: Workload
    cap: int

    def lengths(self, prompts: PromptKeys, group: int, step: int, epoch: int) -> Lengths:
        cut: Lengths = np.minimum(self.inner.lengths(prompts, group, step, epoch), self.cap)
        return cut


def make_scenario(
    spec: JobSpec,
    *,
    workload_path: str | None = None,
    given: WorkloadSpec = DEFAULT,
    replay: Workload | None = None,
    measurements: Measurements | None = None,
) -> Scenario:
    """What ``spec`` works on. ``workload_path``: a workload file, or ``given`` what it would say;
    ``replay``: lengths of a real run, in place of the file's.

    The model may be one of the known names instead of a folder, and the dataset may be missing:
    prompts are made up then, as the workload file has them, and ``assumptions`` say what nobody
    said. Raises ``UserError`` naming the field at fault, with what would do where that is known.
    """
    shape = load_shape(spec.model.path, spec.model.dtype)
    given = given if workload_path is None else load_workload(workload_path)
    _check_room(spec, shape)
    prompts, assumed = _prompts(spec, given, shape)
    evaluation, assumed_too = _evaluation(spec, given, shape)
    longest = max(len(prompt.tokens) for prompt in (*prompts, *evaluation))
    if replay is None:
        workload, about_lengths = _workload(spec, given, shape, longest)
    elif given.lengths.given() or given.preset or given.trace:
        raise UserError(
            "workload: lengths are both replayed and given; leave lengths, preset and trace out "
            "of the workload file, or do not replay",
            param="workload",
        )
    else:
        workload, about_lengths = CutWorkload(replay, spec.rollout.max_tokens), []
    assumptions = dict.fromkeys([*assumed, *assumed_too, *about_lengths])
    drafting = given.drafting
    return Scenario(
        prompts=prompts,
        evaluation=evaluation,
        workload=workload,
        shape=shape,
        measurements=measurements,
        drafting=None if drafting is None else Drafting(drafting.tokens, drafting.acceptance),
        assumptions=tuple(assumptions),
    )


class Scenarios:
    """The scenarios of jobs that differ in a few fields, as in a sweep: what is the same is made
    once. Arguments as for ``make_scenario``."""

    def __init__(
        self,
        *,
        workload_path: str | None = None,
        replay: Workload | None = None,
        measurements: Measurements | None = None,
    ) -> None:
        self._made: dict[str, Scenario] = {}
        self._make = partial(
            make_scenario, workload_path=workload_path, replay=replay, measurements=measurements
        )

    def of(self, spec: JobSpec) -> Scenario:
        """Raises ``UserError`` as ``make_scenario`` does."""
        depends_on = (spec.model, spec.dataset, spec.evaluation, spec.rollout.max_tokens, spec.seed)
        key = repr(depends_on)
        if key not in self._made:
            self._made[key] = self._make(spec)
        return self._made[key]


def _check_room(spec: JobSpec, shape: ModelShape) -> None:
    if shape.max_context and spec.rollout.max_tokens >= shape.max_context:
        raise UserError(
            f"rollout.max_tokens: {spec.rollout.max_tokens} fill the context of {shape.name}, "
            f"{shape.max_context} tokens, which prompts need room in as well",
            param="rollout.max_tokens",
            hint=f"less than {shape.max_context} less the longest prompt would do",
        )


def _prompts(
    spec: JobSpec, given: WorkloadSpec, shape: ModelShape
) -> tuple[tuple[Prompt, ...], list[str]]:
    there = os.path.exists(spec.dataset.path)
    if there and not given.makes_prompts():
        return read_prompts(spec, spec.dataset, "dataset", shape)
    lengths = _prompt_lengths(spec, given, shape)
    count = _limited(given.prompts or ASSUMED_PROMPTS, spec.dataset)
    assumed = ["prompts are those of the workload file, not of the dataset"] if there else []
    if not there and not given.prompts:
        assumed.append(f"there is no dataset {spec.dataset.path} here: it has {count:,} prompts")
    if not given.prompt_tokens:
        assumed.append(f"prompts are {_in_words(_prompt_tokens(given))}")
    return make_prompts(count, lengths, "dataset", shape, spec.seed), assumed


def _evaluation(
    spec: JobSpec, given: WorkloadSpec, shape: ModelShape
) -> tuple[tuple[Prompt, ...], list[str]]:
    if spec.evaluation is None:
        return (), []
    dataset = spec.evaluation.dataset
    there = os.path.exists(dataset.path)
    if there and given.evaluation_prompts is None:
        return read_prompts(spec, dataset, "evaluation.dataset", shape)
    count = _limited(given.evaluation_prompts or ASSUMED_EVALUATION_PROMPTS, dataset)
    assumed = []
    if given.evaluation_prompts is None:
        tokens = _in_words(_prompt_tokens(given))
        assumed = [
            f"there is no evaluation dataset {dataset.path} here: it has {count} prompts, {tokens}"
        ]
    lengths = _prompt_lengths(spec, given, shape)
    return make_prompts(count, lengths, "evaluation.dataset", shape, spec.seed), assumed


def _limited(count: int, dataset: DatasetSpec) -> int:
    return count if dataset.limit is None else min(count, dataset.limit)


def _prompt_lengths(spec: JobSpec, given: WorkloadSpec, shape: ModelShape) -> PromptLengths:
    """Where prompts would leave no room for a response they end, unless that was asked for."""
    asked = _prompt_tokens(given)
    shared = given.shared_prefix_tokens or 0
    room = shape.max_context - spec.rollout.max_tokens if shape.max_context else None
    high = min(each for each in (asked.max, room, 1_000_000) if each is not None)
    for field, tokens in (
        ("prompt_tokens.median", given.prompt_tokens and asked.median),
        ("prompt_tokens.min", given.prompt_tokens and asked.min),
        ("prompt_tokens.max", asked.max),
        ("shared_prefix_tokens", shared + 1),
    ):
        if tokens and room is not None and tokens > room:
            raise UserError(
                f"workload.{field}: prompts of {tokens:g} tokens and responses of up to "
                f"{spec.rollout.max_tokens} (rollout.max_tokens) exceed the context of "
                f"{shape.name}, {shape.max_context}; at most {room} would do",
                param=f"workload.{field}",
            )
    return PromptLengths(asked.median, asked.spread, min(asked.min, high), high, shared)


def _prompt_tokens(given: WorkloadSpec) -> PromptTokensSpec:
    median = ASSUMED_PROMPT_TOKENS + (given.shared_prefix_tokens or 0)
    return given.prompt_tokens or PromptTokensSpec(median=median)


def _in_words(tokens: PromptTokensSpec) -> str:
    if tokens.median is None:
        return f"{tokens.min} to {tokens.max} tokens long"
    spread = f", lognormal with a deviation of {tokens.spread:g}" if tokens.spread else ""
    return f"{tokens.median:g} tokens long{spread}"


def _workload(
    spec: JobSpec, given: WorkloadSpec, shape: ModelShape, longest: int
) -> tuple[Workload, list[str]]:
    """``longest``: tokens of the longest prompt."""
    cap, stated = spec.rollout.max_tokens, given.lengths.given()
    groups: list[Group] = []
    assumed = []
    if given.trace is not None:
        groups = _read_trace(given.trace, longest, shape)
        base = fit_lengths(groups)
        base = replace(base, cap=cap)  # what was recorded may have been cut by another bound
    elif given.preset is not None:
        base = PRESETS[given.preset]
    else:
        base = LengthModel(median=ASSUMED_SHARE * cap, cap=cap)
        assumed = _assumed_lengths(base, stated)
    model = replace(base, seed=spec.seed, **stated)
    if given.lengths.cap is not None:
        model.within_context(longest, shape.max_context)
    model = model.capped(cap)
    if model.median > model.cap:
        field = "workload.lengths.median" if "median" in stated else "workload.preset"
        raise UserError(
            f"{field}: half the responses would be longer than {model.median:g} tokens, but they "
            f"end at {model.cap}",
            param=field,
            hint="raise rollout.max_tokens (and workload.lengths.cap), or lower the median",
        )
    return (CutWorkload(LengthTrace(groups, model), cap) if groups else model), assumed


def _assumed_lengths(base: LengthModel, stated: dict[str, float]) -> list[str]:
    said = []
    if "median" not in stated:
        said.append(f"a median of {base.median:g} tokens, a quarter of rollout.max_tokens")
    for name, what in (("between", "between prompts"), ("within", "within a group")):
        if name not in stated:
            said.append(f"a deviation of {getattr(base, name):g} {what} (of the logarithm)")
    return [f"response lengths have {', '.join(said)}"] if said else []


def _read_trace(path: str, longest: int, shape: ModelShape) -> list[Group]:
    try:
        groups = read_trace(path)
    except UserError as error:
        raise UserError(f"workload.trace: {error.detail}", param="workload.trace") from error
    most = max(max(group.lengths) for group in groups)
    room = shape.max_context - longest
    if shape.max_context and most > room:
        raise UserError(
            f"workload.trace: a response of {most} tokens after a prompt of {longest} exceeds the "
            f"context of {shape.name}, {shape.max_context}; at most {room} would do",
            param="workload.trace",
        )
    return groups
