"""Recorded lengths: from the samples of a run, or a trace file, to lengths that can be replayed.

A trace file is JSON lines, one a prompt and step::

    {"step": 0, "prompt": "a1b7?", "lengths": [11, 12, 11, 40]}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhfless.errors import UserError
from simulator.random_numbers import key_of
from simulator.workload import Lengths, PromptKeys, Workload


@dataclass(frozen=True)
class Group:
    """The responses to one prompt in one step."""

    step: int
    """Counted from 0."""
    prompt: str
    lengths: tuple[int, ...]
    """Tokens."""


class LengthTrace:
    """Replays groups; what was not recorded comes from ``otherwise``.

    The nth time a prompt was recorded is its epoch n. A later epoch than any recorded repeats the
    last; samples beyond a recorded group are ``otherwise``'s.
    """

    def __init__(self, groups: Iterable[Group], otherwise: Workload) -> None:
        self._otherwise = otherwise
        self._epochs: dict[int, list[tuple[int, ...]]] = {}
        for group in sorted(groups, key=lambda each: each.step):
            self._epochs.setdefault(key_of(group.prompt), []).append(group.lengths)

    def lengths(self, prompts: PromptKeys, group: int, step: int, epoch: int) -> Lengths:
        drawn = self._otherwise.lengths(prompts, group, step, epoch)
        for row, prompt in enumerate(prompts.tolist()):
            recorded = self._epochs.get(prompt)
            if recorded:
                known = recorded[min(epoch, len(recorded) - 1)][:group]
                drawn[row, : len(known)] = known
        return drawn


def read_run(folder: str) -> list[Group]:
    """The groups of a run's folder (its ``samples/step-*.jsonl``).

    Raises ``UserError`` where there are none, or a line is not a sample.
    """
    samples = os.path.join(folder, "samples")
    try:
        names = sorted(name for name in os.listdir(samples) if name.endswith(".jsonl"))
    except OSError as error:
        raise UserError(f"{folder} is no run with recorded samples: {error.strerror}") from error
    groups: list[Group] = []
    for name in names:
        path = os.path.join(samples, name)
        step = int("".join(c for c in name if c.isdigit()) or 1) - 1
        by_prompt: dict[str, list[int]] = {}
        for line, row in _rows(path):
            text = text_of(row.get("prompt"))
            by_prompt.setdefault(text, []).append(_tokens(row.get("num_tokens"), path, line))
        groups += [Group(step, prompt, tuple(each)) for prompt, each in by_prompt.items()]
    if not groups:
        raise UserError(f"{samples} holds no samples")
    return groups


def read_trace(path: str) -> list[Group]:
    """The groups of a trace file. Raises ``UserError`` that names the line at fault."""
    groups = []
    for line, row in _rows(path):
        lengths = row.get("lengths")
        step, prompt = row.get("step"), row.get("prompt")
        if not (isinstance(step, int) and isinstance(prompt, str)):
            raise UserError(f"{path} line {line}: needs a step (a number) and a prompt (a text)")
        if not (isinstance(lengths, list) and lengths):
            raise UserError(f"{path} line {line}: needs lengths (a list of numbers)")
        found = tuple(_tokens(each, path, line) for each in lengths)
        groups.append(Group(step, prompt, found))
    if not groups:
        raise UserError(f"{path} holds no groups")
    return groups


def write_trace(path: str, groups: Sequence[Group]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for group in groups:
            row = {"step": group.step, "prompt": group.prompt, "lengths": list(group.lengths)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def text_of(prompt: Any) -> str:
    """What stands for a row's prompt, text or chat messages, in a trace and in ``keys_of``."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)


def keys_of(prompts: Sequence[str]) -> PromptKeys:
    return np.array([key_of(prompt) for prompt in prompts], dtype=np.uint64)


def _rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, mapping) of the lines of a JSON lines file."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise UserError(f"{path} line {number}: not a mapping")
                    yield number, row
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON lines: {error}") from error


def _tokens(value: Any, path: str, line: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{path} line {line}: {value!r} is no number of tokens")
    return value
