"""The functions that pretend keep what the real ones promise."""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.paced import pace, training
from benchmarks.paced.engine import PacedEngine
from benchmarks.paced.model import EOS, FIRST_WORD, Workload, prompt_name
from benchmarks.paced.workloads import Recipe, record
from functions.context import CallContext
from functions.rollout import generation
from rlhfless.batches import Batch, encode_batch, write_batch
from rlhfless.messages import (
    Algorithm,
    CallInfo,
    GradientsDone,
    GradientsRequest,
    ModelRef,
    Optimization,
    PrefillRequest,
    PrefixUse,
    RolloutRequest,
    SampleTask,
    SamplingParams,
    TrainDone,
    TrainRequest,
)
from rlhfless.objects import ObjectStore
from rlhfless.seeds import derive
from rlhfless.versions import read_manifest
from tests.support.rollout import make_context
from tests.support.steering import CallRecord, Responses, assert_same, continued, fresh

INSTANTLY = pace.Pace(
    **{f.name: 0.0 for f in fields(pace.Pace) if f.name.endswith("_s")},
    bandwidth=float("inf"),
)
RECIPE = Recipe("test", prompts=4, group=4, own_tokens=(20, 40), system_tokens=32, longest=60)
CUTS = [32, 48]


@pytest.fixture(autouse=True)
def _every_token_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(generation, "FLUSH_S", 0.0)


@pytest.fixture
def workload(tmp_path: Path) -> tuple[ModelRef, list[list[int]]]:
    """The model, and prompts that all have a mean."""
    recorded = record(RECIPE, tmp_path / "workload")
    words = [line.split('"')[3].split() for line in recorded.data.read_text().splitlines()]
    prompts = [[int(word[1:]) for word in each] for each in words[: RECIPE.prompts]]
    return ModelRef(path=str(recorded.model), job="job", version=0), prompts


def request_of(
    workload: tuple[ModelRef, list[list[int]]], store: str = "memory://", **others: Any
) -> RolloutRequest:
    model, prompts = workload
    tasks = [
        SampleTask(
            id=f"{prompt}/{k}", prompt=prompt, seed=derive(prompt, k), max_tokens=RECIPE.longest
        )
        for prompt in range(len(prompts))
        for k in range(RECIPE.group)
    ]
    return RolloutRequest(
        call=CallInfo(id="call", job="job", step=0, deadline_s=60, store=store),
        model=model,
        sampling=SamplingParams(stop_token_ids=[EOS]),
        prompts=prompts,
        samples=tasks,
        **others,
    )


class Call(CallRecord):
    def __init__(self, request: RolloutRequest, responses: Responses) -> None:
        super().__init__(request, responses)
        self.context = make_context(request.call.store)
        self.context.inbox.open()
        engine = PacedEngine(INSTANTLY)
        engine.ensure(request.model, self.context.store)
        self._frames = engine.run(request, self.context)

    def steer(self, **contents: Any) -> None:
        change = self.change(**contents)
        assert self.context.inbox.offer(change)
        self.expect(change)

    def advance(self, frames: int) -> list[str]:
        taken = (self.take(f) for _ in range(frames) if (f := next(self._frames, None)) is not None)
        return [sample for released in taken for sample in released]

    def finish(self) -> Call:
        for frame in self._frames:
            self.take(frame)
        self.assert_answered()
        return self


@pytest.mark.parametrize("seed", range(3))
def test_samples_that_move_are_what_they_would_have_been(
    workload: tuple[ModelRef, list[list[int]]], seed: int
) -> None:
    rng = random.Random(seed)
    request = request_of(workload)
    ids = {task.id: task for task in request.samples}
    whole = fresh(request.samples)
    Call(request, whole).finish()
    responses = fresh(request.samples)
    source = Call(request_of(workload, max_batch=rng.choice((0, 3))), responses)
    source.advance(rng.randint(1, 12))
    source.steer(release=[source.index_of(s) for s in sorted(source.here) if rng.random() < 0.6])
    released = source.advance(4)
    assert released
    empty = request_of(workload)
    target = Call(
        RolloutRequest(
            call=empty.call,
            model=empty.model,
            sampling=empty.sampling,
            prompts=empty.prompts,
            samples=[continued(ids[s], responses) for s in released[::2]],
        ),
        responses,
    )
    target.advance(2)
    target.steer(samples=[continued(ids[s], responses) for s in released[1::2]])
    target.finish()
    source.finish()
    assert_same(responses, whole)


def test_a_sample_ends_where_the_workload_says(
    workload: tuple[ModelRef, list[list[int]]],
) -> None:
    model, prompts = workload
    responses = fresh(request_of(workload).samples)
    Call(request_of(workload), responses).finish()
    recorded = Workload.read(model.path)
    for name, response in responses.items():
        prompt = prompt_name(prompts[int(name.split("/")[0])])
        expected = recorded.length(prompt, model.version, response.tokens[0])
        assert len(response.tokens) == expected
        assert response.tokens.index(EOS) == expected - 1
        assert min(response.tokens[:-1]) >= FIRST_WORD


def test_prefixes_are_computed_once_and_loaded_elsewhere(
    workload: tuple[ModelRef, list[list[int]]], tmp_path: Path
) -> None:
    plain = fresh(request_of(workload).samples)
    done = Call(request_of(workload), plain).finish().done
    assert done is not None
    tokens = sum(map(len, workload[1]))
    assert done.prefill_computed == tokens

    store, cuts = str(tmp_path / "store"), [CUTS] * RECIPE.prompts
    request = request_of(workload, store, prefix=PrefixUse(cuts=cuts))
    engine = PacedEngine(INSTANTLY)
    context = make_context(store)
    engine.ensure(request.model, context.store)
    prefilled = engine.prefill(
        PrefillRequest(call=request.call, model=request.model, prompts=request.prompts, cuts=cuts),
        context,
    )
    own = RECIPE.prompts * (CUTS[1] - CUTS[0])
    assert prefilled.tokens_computed == CUTS[0] + own
    assert prefilled.published_bytes > pace.KV_LAYOUT.token_bytes * prefilled.tokens_computed

    responses = fresh(request.samples)
    done = Call(request, responses).finish().done
    assert done is not None
    assert done.prefill_loaded == CUTS[0] + own
    assert done.prefill_computed == tokens - RECIPE.prompts * CUTS[1]
    assert done.kv_loaded_bytes == pace.KV_LAYOUT.token_bytes * done.prefill_loaded
    assert_same(responses, plain)


def test_gradients_begun_ahead_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def wait(seconds: float, _: CallContext) -> Any:
        waited.append(seconds)
        return iter(())

    monkeypatch.setattr(training, "wait", wait)
    store = ObjectStore(str(tmp_path))
    model = ModelRef(path="", job="job", version=0)
    common: dict[str, Any] = {
        "model": model,
        "algorithm": Algorithm(name="grpo", advantage="group_norm"),
        "optimization": Optimization(learning_rate=1.0, total_steps=1),
        "seed": 0,
    }
    function = training.PacedTraining()
    context = make_context(store.url)
    (begun,) = function.gradients(
        GradientsRequest(
            call=CallInfo(id="ahead", job="job", step=0, deadline_s=60, store=store.url),
            batch=encode_batch(_batch([5, 7])),
            samples=[0, 2],
            groups=[0, 1, 0],
            **common,
        ),
        context,
    )
    assert begun == GradientsDone(num_samples=2)
    request = TrainRequest(
        call=CallInfo(id="train", job="job", step=0, deadline_s=60, store=store.url),
        batch=write_batch(store, "batches/job/0", _batch([5, 100, 7])),
        **common,
    )
    (done,) = function.train(request, context)
    assert isinstance(done, TrainDone)
    token_s = pace.PACE.train_token_s
    assert waited == pytest.approx([token_s * 14, pace.PACE.train_s + token_s * 101])
    assert read_manifest(store, "job", 1) is not None
    (again,) = function.train(request, context)
    assert again.repeated
    assert again.metrics == done.metrics


def _batch(lengths: list[int]) -> Batch:
    """Prompts of one token."""
    count, tokens = len(lengths), sum(lengths)
    return Batch(
        prompt_tokens=np.zeros(count, dtype=np.int32),
        prompt_lengths=np.ones(count, dtype=np.int32),
        response_tokens=np.zeros(tokens, dtype=np.int32),
        response_lengths=np.array(lengths, dtype=np.int32),
        rollout_logprobs=np.zeros(tokens, dtype=np.float32),
        rewards=np.zeros(count, dtype=np.float32),
        groups=np.zeros(count, dtype=np.int32),
        truncated=np.zeros(count, dtype=np.bool_),
    )
