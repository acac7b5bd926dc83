"""The reference function, handler and all, over directory and in-memory stores."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from functions.context import CallContext, FunctionConfig
from functions.reference.app import create
from functions.weights.tensors import publish
from rlhfless.errors import TransientError, UserError
from rlhfless.messages import (
    CallInfo,
    Frame,
    Heartbeat,
    LogprobsDone,
    LogprobsRequest,
    ModelRef,
)
from rlhfless.objects import ObjectStore

torch.set_num_threads(1)
PROMPTS = [[5, 6, 7], [5, 6, 7], [9], [8, 8, 8, 8], [5, 6, 7]]
RESPONSES = [[10, 11], [12, 13, 14, 15, 2], [16], [], [11] * 9]


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return ObjectStore(f"memory://{uuid.uuid4().hex}")
    return ObjectStore(str(tmp_path / "store"))


@pytest.fixture
def reference() -> Iterator[Any]:
    function = create(FunctionConfig(threads=1))
    yield function
    function.close()


def make_request(model_dir: Path, **changes: Any) -> LogprobsRequest:
    fields: dict[str, Any] = {
        "call": CallInfo(id="c", job="j", step=1, deadline_s=60.0, store="unused"),
        "model": ModelRef(path=str(model_dir), job="j", version=0),
        "prompts": PROMPTS,
        "responses": RESPONSES,
        "tokens_per_microbatch": 16,
    }
    return LogprobsRequest(**(fields | changes))


def call(
    function: Any, request: LogprobsRequest, store: ObjectStore, seconds: float = 60.0
) -> list[Frame]:
    context = CallContext(store, time.monotonic() + seconds)
    return list(function.handlers[LogprobsRequest](request, context))


def values(frames: list[Frame]) -> Any:
    assert all(isinstance(frame, Heartbeat) for frame in frames[:-1])
    done = frames[-1]
    assert isinstance(done, LogprobsDone)
    return np.frombuffer(done.logprobs, "<f4")


def direct(model: Any, temperature: float = 1.0) -> Any:
    """One sequence at a time through the model's own forward pass."""
    parts = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + response])).logits[0] / temperature
        scores = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
        parts.append(scores[torch.arange(len(response)), torch.tensor(response, dtype=torch.long)])
    return torch.cat(parts).numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_base_model(
    reference: Any, tiny_model_dir: Path, store: ObjectStore, temperature: float
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    frames = call(reference, make_request(tiny_model_dir, temperature=temperature), store)
    assert len(frames) > 2, "a heartbeat after every pass"
    np.testing.assert_allclose(values(frames), direct(model, temperature), atol=3e-5, rtol=1e-5)


def test_any_version_can_be_the_reference(
    reference: Any, tiny_model_dir: Path, store: ObjectStore
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    before = direct(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    publish(store, "j", 0, dict(model.named_parameters()), kind="full", call_id="t")
    trained = ModelRef(path=str(tiny_model_dir), job="j", version=1)
    frames = call(reference, make_request(tiny_model_dir, model=trained), store)
    np.testing.assert_allclose(values(frames), direct(model), atol=3e-5, rtol=1e-5)
    frames = call(reference, make_request(tiny_model_dir), store)
    np.testing.assert_allclose(values(frames), before, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("budget", [1, 12, 10_000])
def test_budget_never_changes_the_result(
    reference: Any, tiny_model_dir: Path, store: ObjectStore, budget: int
) -> None:
    plain = values(call(reference, make_request(tiny_model_dir), store))
    other = values(
        call(reference, make_request(tiny_model_dir, tokens_per_microbatch=budget), store)
    )
    np.testing.assert_allclose(other, plain, atol=3e-5, rtol=1e-5)


def test_nothing_to_score(reference: Any, tiny_model_dir: Path, store: ObjectStore) -> None:
    empty = call(reference, make_request(tiny_model_dir, prompts=[], responses=[]), store)
    assert values(empty).size == 0
    blank = call(reference, make_request(tiny_model_dir, prompts=[[3]], responses=[[]]), store)
    assert values(blank).size == 0


def test_stops_between_passes(reference: Any, tiny_model_dir: Path, store: ObjectStore) -> None:
    context = CallContext(store, time.monotonic() + 60)
    request = make_request(tiny_model_dir, tokens_per_microbatch=1)
    frames = reference.handlers[LogprobsRequest](request, context)
    assert isinstance(next(frames), Heartbeat)
    context.stop("drain")
    with pytest.raises(TransientError, match="drain"):
        next(frames)
    # The instance is whole: another call gets its answer.
    assert values(call(reference, make_request(tiny_model_dir), store)).size == 17


def test_deadline(reference: Any, tiny_model_dir: Path, store: ObjectStore) -> None:
    with pytest.raises(TransientError, match="deadline"):
        call(reference, make_request(tiny_model_dir), store, seconds=0.0)


def test_second_call_waits_for_the_first(
    reference: Any, tiny_model_dir: Path, store: ObjectStore
) -> None:
    request = make_request(tiny_model_dir, tokens_per_microbatch=1)
    first = reference.handlers[LogprobsRequest](request, CallContext(store, time.monotonic() + 60))
    next(first)
    with pytest.raises(TransientError, match="deadline"):
        call(reference, request, store, seconds=0.0)
    assert isinstance(list(first)[-1], LogprobsDone)
    assert values(call(reference, request, store)).size == 17


def test_missing_version_is_transient(
    reference: Any, tiny_model_dir: Path, store: ObjectStore
) -> None:
    gone = ModelRef(path=str(tiny_model_dir), job="j", version=7)
    with pytest.raises(TransientError, match="version 7 of job j"):
        call(reference, make_request(tiny_model_dir, model=gone), store)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature above 0"),
        ({"prompts": [[]], "responses": [[3]]}, "is empty"),
        ({"prompts": [[3] * 200], "responses": [[4] * 100]}, "context is 256"),
        ({"prompts": [[3]], "responses": [[64]]}, "vocabulary of 64"),
    ],
)
def test_requests_that_cannot_be_served(
    reference: Any,
    tiny_model_dir: Path,
    store: ObjectStore,
    changes: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(UserError, match=message):
        call(reference, make_request(tiny_model_dir, **changes), store)
