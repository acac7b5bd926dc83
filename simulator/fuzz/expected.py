"""What a job must come to, whatever happens on the way: planned without the controller's plan.

Where the controller goes step by step and remembers its position, this walks the order from the
start; where it gathers what comes from functions, this asks ``truth``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.dataset import Position
from controller.job import Data, Prompt
from rlhfless.batches import Batch
from rlhfless.seeds import derive
from rlhfless.spec import JobSpec, reward_name
from simulator.fuzz import truth


@dataclass(frozen=True)
class ExpectedSample:
    """``version``: of the policy that has to generate it; ``length``: tokens of its response."""

    id: str
    prompt: Prompt
    group: int
    seed: int
    max_tokens: int
    version: int
    length: int

    @property
    def tokens(self) -> list[int]:
        return truth.tokens(self.seed, 0, self.length)


LengthOf = Callable[[int, Prompt, str, int], int]
"""(step, prompt, sample id, most) -> tokens of the response."""


class Expected:
    """``steps[s]``: the samples of a step in their order; ``evaluations[s]``: of that after s
    steps; ``by_id``: all of them."""

    def __init__(self, spec: JobSpec, data: Data, length_of: LengthOf) -> None:
        self.spec = spec
        self.positions: list[Position] = []
        self.steps: list[list[ExpectedSample]] = []
        self._length_of = length_of
        self._batches: dict[int, Batch] = {}
        training = spec.training
        count = data.order.num_steps(training.prompts_per_step, training.steps, training.epochs)
        position = Position()
        for step in range(count):
            rows, position = data.order.take(position, training.prompts_per_step)
            self.positions.append(position)
            self.steps.append(list(self._step(step, [data.prompts[row] for row in rows])))
        self.evaluations: dict[int, list[ExpectedSample]] = {}
        if (evaluation := spec.evaluation) is not None:
            every = evaluation.every
            between = range(every, count, every) if every else ()
            for steps in (0, *between, count):
                self.evaluations[steps] = list(self._evaluation(steps, data.evaluation))
        everything = [*self.steps, *self.evaluations.values()]
        self.by_id = {sample.id: sample for samples in everything for sample in samples}

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    def batch(self, step: int) -> Batch:
        """What the step has to be trained on."""
        if step not in self._batches:
            self._batches[step] = self._batch(step)
        return self._batches[step]

    def _batch(self, step: int) -> Batch:
        samples = self.steps[step]
        responses = [sample.tokens for sample in samples]
        reference = None
        if self.spec.needs_reference():
            pairs = zip(samples, responses, strict=True)
            reference = np.concatenate([truth.reference(s.prompt.tokens, r) for s, r in pairs])
        logprobs = (truth.logprobs(s.seed, s.version, 0, s.length) for s in samples)
        return Batch(
            prompt_tokens=np.concatenate([np.asarray(s.prompt.tokens, np.int32) for s in samples]),
            prompt_lengths=np.array([len(s.prompt.tokens) for s in samples], np.int32),
            response_tokens=np.concatenate([np.asarray(r, np.int32) for r in responses]),
            response_lengths=np.array([s.length for s in samples], np.int32),
            rollout_logprobs=np.frombuffer(b"".join(logprobs), "<f4"),
            rewards=np.array([self.total(s) for s in samples], np.float32),
            groups=np.array([s.group for s in samples], np.int32),
            truncated=np.array([s.length == s.max_tokens for s in samples], np.bool_),
            reference_logprobs=reference,
        )

    def total(self, sample: ExpectedSample) -> float:
        weights = [reward.weight for reward in self.spec.rewards]
        return truth.total(weights, self.scores(sample))

    def scores(self, sample: ExpectedSample) -> list[float | None]:
        """By reward function."""
        names = [reward_name(reward) for reward in self.spec.rewards]
        return [truth.score(name, sample.prompt.row.prompt, sample.tokens) for name in names]

    def accuracy(self, steps: int) -> float:
        """Of the evaluation after so many steps."""
        evaluation = self.spec.evaluation
        assert evaluation is not None
        samples = self.evaluations[steps]
        right = sum(self.total(sample) >= evaluation.threshold for sample in samples)
        return right / len(samples)

    def _step(self, step: int, prompts: Sequence[Prompt]) -> Iterable[ExpectedSample]:
        for group, prompt in enumerate(prompts):
            for k in range(self.spec.algorithm.group_size):
                seed = derive(self.spec.seed, "step", step, "group", group, "sample", k)
                yield self._sample(f"{step}/{group}/{k}", prompt, group, seed, step)

    def _evaluation(self, steps: int, prompts: Sequence[Prompt]) -> Iterable[ExpectedSample]:
        assert self.spec.evaluation is not None
        for row, prompt in enumerate(prompts):
            for k in range(self.spec.evaluation.samples_per_prompt):
                seed = derive(self.spec.seed, "eval", row, k)
                yield self._sample(f"eval-{steps}/{row}/{k}", prompt, row, seed, steps)

    def _sample(
        self, name: str, prompt: Prompt, group: int, seed: int, step: int
    ) -> ExpectedSample:
        most = self.spec.rollout.max_tokens
        length = self._length_of(step, prompt, name, most)
        return ExpectedSample(name, prompt, group, seed, most, version=step, length=length)


def same_batch(found: Batch, expected: Batch) -> str | None:
    """What tells two batches apart, None if nothing does."""
    for name, array in vars(expected).items():
        other = getattr(found, name)
        if (array is None) != (other is None):
            return f"{name} is {'missing' if other is None else 'there'}"
        if array is not None and not np.array_equal(array, other):
            return f"{name} is {other.tolist()}, not {array.tolist()}"
    return None


def rows_of(batch: Batch, places: Sequence[int]) -> Batch:
    """The part of a batch that ``places`` name, in their order."""
    starts = {
        "prompt": np.concatenate([[0], np.cumsum(batch.prompt_lengths)]),
        "response": np.concatenate([[0], np.cumsum(batch.response_lengths)]),
    }

    def cut(values: NDArray[Any], kind: str) -> NDArray[Any]:
        at = starts[kind]
        return np.concatenate([values[at[p] : at[p + 1]] for p in places])

    reference = batch.reference_logprobs
    rows = list(places)
    return Batch(
        prompt_tokens=cut(batch.prompt_tokens, "prompt"),
        prompt_lengths=batch.prompt_lengths[rows],
        response_tokens=cut(batch.response_tokens, "response"),
        response_lengths=batch.response_lengths[rows],
        rollout_logprobs=cut(batch.rollout_logprobs, "response"),
        rewards=batch.rewards[rows],
        groups=batch.groups[rows],
        truncated=batch.truncated[rows],
        reference_logprobs=None if reference is None else cut(reference, "response"),
    )


def by_shape(samples: Mapping[str, ExpectedSample]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(prompt, response) of every sample, for requests that carry no names."""
    return {(sample.prompt.tokens, tuple(sample.tokens)) for sample in samples.values()}
