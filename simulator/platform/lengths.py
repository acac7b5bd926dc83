"""How long the response to a sample is, and what its tokens are, whoever generates it.

Tokens are made up: a window of a fixed pattern that begins where the sample's seed says. So they
cost nothing, are the same wherever a sample is continued, and a gap, a repeat or a mix-up of
samples shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from controller.job import Prompt
from rlhfless.messages import SampleTask
from simulator.random_numbers import key_of
from simulator.workload import Workload
from simulator.workload_trace import text_of

_PERIOD = 251
"""Small integers are shared objects in CPython: a token takes the eight bytes of its place."""


class Responses:
    """``samples_per_prompt``: of a step; evaluations take the first of them.

    ``step_of``: the step of the job that a simulated one stands for.
    """

    def __init__(
        self,
        workload: Workload,
        prompts: Iterable[Prompt],
        samples_per_prompt: int,
        step_of: Callable[[int], int] = lambda step: step,
    ) -> None:
        self._workload = workload
        self._samples = samples_per_prompt
        self._step_of = step_of
        self._keys: dict[tuple[int, ...], int] = {}
        for prompt in prompts:
            self._keys.setdefault(prompt.tokens, prompt_key(prompt))
        self._visits: dict[int, list[int]] = {}
        self._known: dict[tuple[int, int], list[int]] = {}
        self._pattern = [index % _PERIOD for index in range(_PERIOD)]

    def keys(self, prompts: Iterable[Sequence[int]]) -> list[int]:
        """By which ``lengths`` knows prompts."""
        return [self._keys[tuple(prompt)] for prompt in prompts]

    def lengths(self, step: int, keys: Sequence[int], tasks: Sequence[SampleTask]) -> list[int]:
        """Tokens of the whole response of each task, its limit kept. ``keys``: of the prompts that
        tasks index."""
        self._draw(step, [keys[task.prompt] for task in tasks])
        found = []
        for task in tasks:
            known = self._known[step, keys[task.prompt]]
            found.append(min(known[sample_number(task.id) % len(known)], task.max_tokens))
        return found

    def tokens(self, task: SampleTask, start: int, count: int) -> list[int]:
        """Of the response, from position ``start``."""
        begin = (task.seed + start) % _PERIOD
        pattern = self._pattern
        while len(pattern) < begin + count:
            pattern += pattern[:_PERIOD]
        return pattern[begin : begin + count]

    def _draw(self, step: int, keys: Sequence[int]) -> None:
        new = list(dict.fromkeys(key for key in keys if (step, key) not in self._known))
        if not new:
            return
        by_epoch: dict[int, list[int]] = {}
        for key in new:
            by_epoch.setdefault(self._epoch(key, step), []).append(key)
        for epoch, these in by_epoch.items():
            prompts = np.array(these, dtype=np.uint64)
            drawn = self._workload.lengths(prompts, self._samples, self._step_of(step), epoch)
            for key, row in zip(these, drawn.tolist(), strict=True):
                self._known[step, key] = row
        for old in [each for each in self._known if each[0] < step - 1]:
            del self._known[old]

    def _epoch(self, key: int, step: int) -> int:
        """How many earlier steps had the prompt."""
        visits = self._visits.setdefault(key, [])
        if step not in visits:
            visits.append(step)
        return visits.index(step)


def sample_number(sample_id: str) -> int:
    """Which of its prompt's samples it is: the last part of its name."""
    return int(sample_id.rsplit("/", 1)[1])


def prompt_key(prompt: Prompt) -> int:
    """By what it says, so that a recorded run knows it again."""
    return key_of(text_of(prompt.row.prompt))
