"""The workload file: what a user knows of a job's prompts and of how long responses to them are.

YAML; unknown fields are errors. What is left out is assumed, and the simulation says so
(``simulator.scenario_file``). A long-tailed mathematics job on prompts of its own::

    prompts: 8192
    prompt_tokens: {median: 200, spread: 0.4}
    preset: long_tailed_math
    lengths: {growth: 0.002, growth_steps: 200}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rlhfless.errors import UserError
from rlhfless.spec_file import read_mapping, user_error
from simulator.workload import LONG_TAILED_MATH, LengthModel

Count = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]

PRESETS: Mapping[str, LengthModel] = {"long_tailed_math": LONG_TAILED_MATH}


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PromptTokensSpec(Section):
    """Tokens of made-up prompts; a plain number: they all have so many."""

    median: Positive | None = None
    """Lognormal around it; null: uniform between ``min`` and ``max``."""
    spread: NonNegative = 0.4
    """Deviation of the logarithm; 0: all the same."""
    min: Count = 1
    max: Count | None = None
    """Null: as many as leave room for a response."""

    @model_validator(mode="before")
    @classmethod
    def _number(cls, given: Any) -> Any:
        plain = isinstance(given, int | float) and not isinstance(given, bool)
        return {"median": given, "spread": 0} if plain else given

    @model_validator(mode="after")
    def _some_range(self) -> PromptTokensSpec:
        if self.median is None and self.max is None:
            raise ValueError("give a median, or min and max")
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max {self.max} is less than min {self.min}")
        return self


class LengthsSpec(Section):
    """Response lengths (``simulator.workload.LengthModel``); deviations are of the natural
    logarithm. Null: the preset's, or what is assumed without one."""

    median: Positive | None = None
    """Tokens at the first step; assumed: a quarter of ``rollout.max_tokens``."""
    cap: Count | None = None
    """Longest response; it never exceeds ``rollout.max_tokens``."""
    between: NonNegative | None = None
    """Deviation between prompts; assumed: 0.4."""
    within: NonNegative | None = None
    """Deviation between samples of a prompt; assumed: 0.4."""
    tail_share: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of responses that run on; assumed: 0."""
    tail_index: Positive | None = None
    """Index of the Pareto distribution of the factor by which they do; smaller: longer."""
    persistence: Fraction | None = None
    """Correlation of a prompt's part between an epoch and the next; assumed: 0.9."""
    growth: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Added to the logarithm at every step; assumed: 0."""
    growth_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps after which lengths have grown enough."""

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class DraftingSpec(Section):
    """Speculative decoding (``simulator.drafting``)."""

    tokens: Count = 7
    """Draft tokens of a row and iteration at most; the best number for each batch is taken."""
    acceptance: Fraction
    """Probability that a draft token is accepted if those before it were; measure it: it falls
    from task to task and along a response."""


class WorkloadSpec(Section):
    """What a job works on. Saying anything of the prompts makes them up, dataset or not."""

    prompts: Count | None = None
    """Rows of the dataset; assumed where there is none: 7,473, as GSM8K has."""
    evaluation_prompts: Count | None = None
    """Rows of the evaluation's dataset; assumed where there is none: 256."""
    prompt_tokens: PromptTokensSpec | None = None
    """Assumed where there is no dataset: around 200, beside what is shared."""
    shared_prefix_tokens: Annotated[int, Field(ge=0)] | None = None
    """So many first tokens are the same in all prompts: a system prompt, worked examples."""
    lengths: LengthsSpec = LengthsSpec()
    preset: Literal["long_tailed_math"] | None = None
    """Lengths known from elsewhere; ``lengths`` goes before it, field by field."""
    trace: str | None = None
    """A file of recorded lengths (``simulator.workload_trace``), relative to this one. What it
    does not hold is drawn from a model fit to it, with ``lengths`` going before."""

    @model_validator(mode="after")
    def _consistent(self) -> WorkloadSpec:
        if self.preset and self.trace:
            raise ValueError("preset and trace both say how long responses are: give one of them")
        tokens, shared = self.prompt_tokens, self.shared_prefix_tokens or 0
        if tokens and shared >= (tokens.median or tokens.max or 0):
            raise ValueError(
                f"shared_prefix_tokens: a prompt must be longer than the {shared} tokens it shares"
            )
        return self

    drafting: DraftingSpec | None = None
    """Null: none."""

    def makes_prompts(self) -> bool:
        return not (
            self.prompts is None
            and self.prompt_tokens is None
            and self.shared_prefix_tokens is None
        )


DEFAULT = WorkloadSpec()


def load_workload(path: str) -> WorkloadSpec:
    """Read a workload file; its relative paths are relative to it. Errors name the field."""
    raw = read_mapping(path, "workload file", "prompts, prompt_tokens, lengths, ...")
    workload = parse_workload(raw)
    if workload.trace is None:
        return workload
    trace = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(path)), workload.trace))
    return workload.model_copy(update={"trace": trace})


def parse_workload(raw: Mapping[str, Any]) -> WorkloadSpec:
    try:
        return WorkloadSpec.model_validate(raw)
    except ValidationError as error:
        found = user_error(error, WorkloadSpec, "workload")
        lines = [
            line if line.startswith("workload:") else f"workload.{line}"
            for line in found.detail.splitlines()
        ]
        param = found.param if found.param == "workload" else f"workload.{found.param}"
        raise UserError("\n".join(lines), param=param) from None
