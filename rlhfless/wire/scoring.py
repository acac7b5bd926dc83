"""Messages of the reward and reference functions."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from rlhfless.wire.base import CallInfo, Frame, ModelRef, Struct

Prompt: TypeAlias = str | list[dict[str, Any]]


class RewardFunction(Struct, frozen=True, kw_only=True):
    """One reward: ``kind`` ``python`` (``target`` = ``file.py:name`` or ``module:name``),
    ``model`` (a sequence-classification model's path) or ``http`` (a URL).

    ``timeout_s`` bounds one call, ``memory_bytes`` the Python worker's address space (0: none);
    ``network`` lets user code reach the network.
    """

    name: str
    kind: Literal["python", "model", "http"]
    target: str
    weight: float = 1.0
    timeout_s: float = 30.0
    memory_bytes: int = 0
    network: bool = False


class RewardRequest(Struct, frozen=True, kw_only=True):
    """Score finished samples. Lists run in parallel: entry i is sample ``sample_ids[i]``.

    ``prompts`` and ``completions`` are strings, or chat messages where the dataset is chat;
    ``columns`` are the dataset's further columns, repeated per sample.
    """

    call: CallInfo
    functions: list[RewardFunction]
    sample_ids: list[str]
    prompts: list[Prompt]
    completions: list[Prompt]
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]] = {}


class RewardDone(Frame, frozen=True, kw_only=True):
    """``scores[f][i]``: function f on sample i, None where it does not apply.

    ``totals[i]`` is the weighted sum over the functions that apply.
    """

    scores: list[list[float | None]]
    totals: list[float]


class LogprobsRequest(Struct, frozen=True, kw_only=True):
    """Per-token log-probs of given responses under ``model`` at ``temperature`` (no truncation).

    ``prompts[i]`` + ``responses[i]`` is sequence i. ``tokens_per_microbatch`` bounds padded tokens
    of one forward pass; it never changes the result.
    """

    call: CallInfo
    model: ModelRef
    prompts: list[list[int]]
    responses: list[list[int]]
    temperature: float = 1.0
    tokens_per_microbatch: int = 8192


class LogprobsDone(Frame, frozen=True, kw_only=True):
    """``logprobs``: float32 LE over the responses back to back, ``sum(len(responses))`` values."""

    logprobs: bytes
    weights_pull_s: float = 0.0
