"""A step's samples as rows for people to read: in a run's folder, and in the service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from controller.collector import FinishedSample
from controller.job import StepSamples
from rlhfless.spec import JobSpec, reward_name


def sample_rows(
    done: StepSamples, spec: JobSpec, texts: Sequence[str]
) -> Iterator[tuple[FinishedSample, dict[str, Any]]]:
    """Each sample with its row, in the step's order; ``texts`` are the decoded responses."""
    names = [reward_name(reward) for reward in spec.rewards]
    for sample, text in zip(done.samples, texts, strict=True):
        scores = done.scores[sample.id]
        yield (
            sample,
            {
                "id": sample.id,
                "prompt": done.prompts[sample.id].row.prompt,
                "completion": text,
                "reward": scores.total,
                "rewards": dict(zip(names, scores.parts, strict=True)),
                "num_tokens": len(sample.tokens),
                "finish_reason": sample.reason,
                "version": sample.versions[0],
            },
        )
