"""Tiny models, requests, and what a stream of rollout frames amounts to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from functions.context import CallContext
from functions.rollout.engine import Engine
from functions.rollout.transformers_engine import TransformersEngine
from rlhfless.messages import (
    CallInfo,
    Finished,
    Frame,
    ModelRef,
    Progress,
    RolloutDone,
    RolloutRequest,
    SampleTask,
    SamplingParams,
    Tokens,
)
from rlhfless.objects import ObjectStore
from rlhfless.seeds import derive

VOCABULARY = 64


def make_request(
    model: str | Path,
    prompts: Sequence[Sequence[int]],
    tasks: Sequence[SampleTask],
    *,
    max_batch: int = 0,
    version: int = 0,
    store: str = "memory://",
    **sampling: Any,
) -> RolloutRequest:
    return RolloutRequest(
        call=CallInfo(id="call", job="job", step=0, deadline_s=60, store=store),
        model=ModelRef(path=str(model), job="job", version=version),
        sampling=SamplingParams(**sampling),
        prompts=[list(prompt) for prompt in prompts],
        samples=list(tasks),
        max_batch=max_batch,
    )


def make_tasks(
    num_prompts: int, group: int, max_tokens: int | Callable[[int], int] = 12
) -> list[SampleTask]:
    """``group`` samples of each prompt; ``max_tokens`` may depend on the sample's number."""
    return [
        SampleTask(
            id=str(number),
            prompt=number // group,
            seed=derive(7, "sample", number),
            max_tokens=max_tokens(number) if callable(max_tokens) else max_tokens,
        )
        for number in range(num_prompts * group)
    ]


def make_prompts(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, VOCABULARY, length).tolist() for length in lengths]


@dataclass
class Outcome:
    """``tokens[i]`` and ``logprobs[i]`` are new ones of sample i; ``versions`` those seen."""

    tokens: list[list[int]]
    logprobs: list[list[float]]
    reasons: dict[int, str] = field(default_factory=dict)
    versions: set[int] = field(default_factory=set)
    progress: list[Progress] = field(default_factory=list)
    done: RolloutDone | None = None

    def add(self, frame: Frame, request: RolloutRequest) -> None:
        assert self.done is None, "a frame after the terminal one"
        match frame:
            case Tokens():
                self._add_tokens(frame, request)
            case Finished():
                for sample, reason in zip(frame.samples, frame.reasons, strict=True):
                    assert sample not in self.reasons
                    self.reasons[sample] = reason
            case Progress():
                self.progress.append(frame)
            case RolloutDone():
                self.done = frame

    def _add_tokens(self, frame: Tokens, request: RolloutRequest) -> None:
        self.versions.add(frame.version)
        assert len(set(frame.samples)) == len(frame.samples), "a sample twice in one frame"
        values = np.frombuffer(frame.logprobs, dtype="<f4").tolist()
        assert len(values) == len(frame.tokens) == sum(frame.counts)
        offset = 0
        for sample, start, count in zip(frame.samples, frame.starts, frame.counts, strict=True):
            assert sample not in self.reasons, "tokens after the sample's end"
            assert start == len(request.samples[sample].tokens) + len(self.tokens[sample])
            self.tokens[sample] += frame.tokens[offset : offset + count]
            self.logprobs[sample] += values[offset : offset + count]
            offset += count

    @property
    def end(self) -> RolloutDone:
        assert self.done is not None
        return self.done


def collect(frames: Iterator[Frame], request: RolloutRequest) -> Outcome:
    outcome = Outcome([[] for _ in request.samples], [[] for _ in request.samples])
    for frame in frames:
        outcome.add(frame, request)
    return outcome


def make_context(store: str = "memory://", seconds: float = 60.0) -> CallContext:
    return CallContext(ObjectStore(store), time.monotonic() + seconds)


def generate(
    request: RolloutRequest,
    engine: Engine | None = None,
    context: CallContext | None = None,
) -> Outcome:
    engine = engine or TransformersEngine(torch.device("cpu"))
    context = context or make_context()
    engine.ensure(request.model, context.store)
    return collect(engine.run(request, context), request)
