"""What a job starts from: the model, its data, and what it is held against."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhfless.spec_sections.base import NonNegative, Positive, Section


class ModelSpec(Section):
    """The policy and its initial weights."""

    path: str
    """A folder with a Hugging Face model and tokenizer, or a name on the Hub."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision in which functions hold the weights."""
    chat_template: str | None = None
    """A Jinja chat template that replaces the tokenizer's own."""


class DatasetSpec(Section):
    """Prompts, and the columns that go with them to the rewards."""

    path: str
    """A JSONL or Parquet file, or a folder written by ``datasets.save_to_disk``."""
    format: Literal["auto", "jsonl", "parquet", "hf"] = "auto"
    """``auto`` goes by the file name; a folder is ``hf``."""
    split: str = "train"
    """Split of a Hugging Face ``DatasetDict``."""
    columns: dict[str, str] = {}
    """Renames: name the rewards expect -> column of the data, e.g. ``{prompt: question}``."""
    system_prompt: str | None = None
    """Put before every prompt as a system message; makes string prompts chat prompts."""
    chat: bool | None = None
    """Render string prompts as one user message. Default: only if ``system_prompt`` is set."""
    shuffle: bool = True
    """Shuffle each epoch, by the job's seed."""
    limit: Positive | None = None
    """Use the first so many rows only."""
    overlong: Literal["error", "drop", "truncate_left"] = "error"
    """What to do with a prompt that leaves no room for ``rollout.max_tokens`` in the context."""


class EvaluationSpec(Section):
    """A held-out set, sampled before the first and after the last step, and in between."""

    dataset: DatasetSpec
    every: NonNegative = 0
    """Evaluate every so many steps as well; 0: only before and after."""
    samples_per_prompt: Positive = 1
    temperature: float | None = Field(default=None, ge=0)
    """Default: the rollout's temperature; 0 is greedy."""
    threshold: float = 1.0
    """A response counts as right when its total reward reaches this."""
