"""What every engine does, asked of each: the rollout function needs nothing else of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from functions.rollout.engine import Engine
from functions.weights.tensors import publish
from rlhfless.engines import EngineOptions
from rlhfless.errors import TransientError, UserError
from rlhfless.messages import (
    CallInfo,
    ModelRef,
    Released,
    RolloutRequest,
    SampleTask,
    SteerRequest,
    Tokens,
)
from rlhfless.objects import ObjectStore
from tests.conftest import make_model
from tests.support.rollout import (
    Outcome,
    generate,
    make_context,
    make_prompts,
    make_request,
    make_tasks,
)

pytestmark = pytest.mark.slow

PROMPTS = make_prompts([9, 30, 14])


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()


def teacher_forced(model: Any, prompt: list[int], tokens: list[int], temperature: float) -> Any:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    scores = torch.log_softmax(logits.float() / temperature, -1)
    return scores.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1).numpy()


def assert_the_models(outcome: Outcome, request: RolloutRequest, model: Any) -> None:
    for task, tokens, logprobs in zip(
        request.samples, outcome.tokens, outcome.logprobs, strict=True
    ):
        prompt = request.prompts[task.prompt] + task.tokens
        want = teacher_forced(model, prompt, tokens, request.sampling.temperature)
        np.testing.assert_allclose(logprobs, want, atol=1e-4)


def test_engines_agree_on_greedy_tokens(
    tiny_model_dir: Path, transformers_engine: Engine, vllm_engine: Engine
) -> None:
    request = make_request(tiny_model_dir, PROMPTS, make_tasks(3, 2, 20), temperature=0.0)
    one, other = generate(request, transformers_engine), generate(request, vllm_engine)
    assert one.tokens == other.tokens
    assert one.logprobs == other.logprobs
    assert one.reasons == other.reasons


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probs_are_the_models(
    engine: Engine, tiny_model_dir: Path, model: Any, temperature: float
) -> None:
    tasks = make_tasks(3, 4, 15)
    request = make_request(tiny_model_dir, PROMPTS, tasks, temperature=temperature)
    outcome = generate(request, engine)
    assert outcome.reasons == dict.fromkeys(range(12), "length")
    assert_the_models(outcome, request, model)


def test_truncated_sampling_tells_the_log_probs_of_what_is_left(
    engine: Engine, tiny_model_dir: Path
) -> None:
    tasks = make_tasks(1, 64, 1)
    outcome = generate(make_request(tiny_model_dir, PROMPTS[:1], tasks, top_k=4), engine)
    drawn = {
        tokens[0]: logprobs[0]
        for tokens, logprobs in zip(outcome.tokens, outcome.logprobs, strict=True)
    }
    assert len(drawn) <= 4
    assert sum(np.exp(list(drawn.values()))) == pytest.approx(1.0, abs=0.1 * (4 - len(drawn) + 1))


def test_a_seed_decides_a_sample(engine: Engine, tiny_model_dir: Path) -> None:
    tasks = make_tasks(3, 4, 12)
    first = generate(make_request(tiny_model_dir, PROMPTS, tasks), engine)
    again = generate(make_request(tiny_model_dir, PROMPTS, tasks, max_batch=5), engine)
    assert first.tokens == again.tokens
    assert len({tuple(tokens) for tokens in first.tokens}) == 12


def test_a_continuation_is_of_the_same_distribution(
    engine: Engine, tiny_model_dir: Path, model: Any
) -> None:
    tasks = make_tasks(3, 2, 20)
    begun = generate(make_request(tiny_model_dir, PROMPTS, tasks), engine)
    rest = [
        msgspec.structs.replace(task, tokens=tokens[: 3 + n])
        for n, (task, tokens) in enumerate(zip(tasks, begun.tokens, strict=True))
    ]
    request = make_request(tiny_model_dir, PROMPTS, rest)
    outcome = generate(request, engine)
    assert [len(tokens) for tokens in outcome.tokens] == [17 - n for n in range(6)]
    assert_the_models(outcome, request, model)
    assert generate(request, engine).tokens == outcome.tokens


def test_a_greedy_continuation_is_what_it_would_have_been(
    engine: Engine, tiny_model_dir: Path
) -> None:
    tasks = make_tasks(3, 1, 20)
    whole = generate(make_request(tiny_model_dir, PROMPTS, tasks, temperature=0.0), engine)
    rest = [
        msgspec.structs.replace(task, tokens=tokens[:7])
        for task, tokens in zip(tasks, whole.tokens, strict=True)
    ]
    outcome = generate(make_request(tiny_model_dir, PROMPTS, rest, temperature=0.0), engine)
    assert outcome.tokens == [tokens[7:] for tokens in whole.tokens]


def test_stop_tokens_end_a_response_and_belong_to_it(engine: Engine, tiny_model_dir: Path) -> None:
    tasks = make_tasks(3, 4, 30)
    free = generate(make_request(tiny_model_dir, PROMPTS, tasks), engine)
    stop = free.tokens[0][4]
    request = make_request(tiny_model_dir, PROMPTS, tasks, stop_token_ids=[stop, 10**6])
    outcome = generate(request, engine)
    for n, tokens in enumerate(free.tokens):
        cut = tokens.index(stop) + 1 if stop in tokens else len(tokens)
        assert outcome.tokens[n] == tokens[:cut]
        assert outcome.reasons[n] == ("stop" if stop in tokens else "length")


def test_samples_that_arrive_complete_are_finished_at_once(
    engine: Engine, tiny_model_dir: Path
) -> None:
    tasks = [
        SampleTask(id="a", prompt=0, seed=1, max_tokens=2, tokens=[5, 6]),
        SampleTask(id="b", prompt=0, seed=2, max_tokens=9, tokens=[5, 2]),
        SampleTask(id="c", prompt=0, seed=3, max_tokens=3, tokens=[5]),
    ]
    outcome = generate(make_request(tiny_model_dir, PROMPTS, tasks, stop_token_ids=[2]), engine)
    assert outcome.reasons.keys() == {0, 1, 2}
    assert (outcome.reasons[0], outcome.reasons[1]) == ("length", "stop")
    assert outcome.tokens[:2] == [[], []]


@pytest.mark.parametrize("reason", ["drain", "deadline", "abort"])
def test_a_stopped_call_hands_back_what_is_not_done(
    engine: Engine, tiny_model_dir: Path, model: Any, reason: Any
) -> None:
    tasks = make_tasks(3, 4, lambda n: 4 if n % 2 else 200)
    request = make_request(tiny_model_dir, PROMPTS, tasks, max_batch=6)
    context = make_context()
    engine.ensure(request.model, context.store)
    outcome = Outcome([[] for _ in tasks], [[] for _ in tasks])
    for frame in engine.run(request, context):
        outcome.add(frame, request)
        if outcome.reasons:
            context.stop(reason)
    assert outcome.end.unfinished
    assert sorted([*outcome.end.unfinished, *outcome.reasons]) == list(range(12))
    assert outcome.end.generated_tokens == sum(map(len, outcome.tokens))
    rest = [
        msgspec.structs.replace(task, tokens=new)
        for task, new in zip(tasks, outcome.tokens, strict=True)
    ]
    again = make_request(tiny_model_dir, PROMPTS, rest)
    done = generate(again, engine)
    assert done.end.unfinished == []
    assert_the_models(done, again, model)


def test_a_call_past_its_deadline_generates_nothing(engine: Engine, tiny_model_dir: Path) -> None:
    request = make_request(tiny_model_dir, PROMPTS, make_tasks(3, 1))
    outcome = generate(request, engine, make_context(seconds=-1.0))
    assert outcome.end.unfinished == [0, 1, 2]
    assert outcome.tokens == [[], [], []]


def test_tokens_come_while_others_are_generated(engine: Engine, tiny_model_dir: Path) -> None:
    request = make_request(tiny_model_dir, PROMPTS, make_tasks(3, 2, 200))
    context = make_context()
    engine.ensure(request.model, context.store)
    frames = list(engine.run(msgspec.structs.replace(request, progress_s=0.0), context))
    assert sum(isinstance(frame, Tokens) for frame in frames) >= 3
    assert any(getattr(frame, "running", 0) == 6 for frame in frames)


def test_a_prompt_is_run_once_for_its_group(engine: Engine, tiny_model_dir: Path) -> None:
    """vLLM shares whole blocks, 128 tokens on a CPU; the rest each sample runs by itself."""
    prompts = make_prompts([133, 140], seed=3)
    request = make_request(tiny_model_dir, prompts, make_tasks(2, 8, 6))
    end = generate(request, engine).end
    assert end.prefill_computed <= 273 + 7 * (5 + 12)
    assert end.prefill_saved >= 7 * 256
    assert end.prefill_computed + end.prefill_saved == 8 * 273


def test_versions_in_sequence(
    engine: Engine, tiny_model_dir: Path, model: Any, tmp_path: Path
) -> None:
    changed = {name: 1.1 * tensor.detach() for name, tensor in model.named_parameters()}
    publish(ObjectStore(str(tmp_path)), "job", 0, changed, kind="full", call_id="train")
    outcomes = []
    for version in (0, 1, 0):
        request = make_request(tiny_model_dir, PROMPTS, make_tasks(3, 2), version=version)
        outcomes.append(generate(request, engine, make_context(str(tmp_path))))
        assert outcomes[-1].versions == {version}
    assert outcomes[0].tokens == outcomes[2].tokens != outcomes[1].tokens
    assert outcomes[1].end.weights_bytes > 0
    assert outcomes[1].end.weights_pull_s > 0


def test_a_version_that_is_not_there_is_said_and_the_next_call_is_served(
    engine: Engine, tiny_model_dir: Path, tmp_path: Path
) -> None:
    store = ObjectStore(str(tmp_path))
    with pytest.raises(TransientError, match="version 7 of job none"):
        engine.ensure(ModelRef(path=str(tiny_model_dir), job="none", version=7), store)
    request = make_request(tiny_model_dir, PROMPTS, make_tasks(3, 1))
    assert generate(request, engine).end.unfinished == []


def test_samples_leave_and_join_a_call_that_runs(
    engine: Engine, tiny_model_dir: Path, model: Any
) -> None:
    tasks = make_tasks(3, 2, 150)
    request = make_request(tiny_model_dir, PROMPTS, tasks)
    context = make_context()
    engine.ensure(request.model, context.store)
    context.inbox.open()
    late = SampleTask(id="late", prompt=3, seed=9, max_tokens=10)
    info = CallInfo(id="steer", job="job", step=0, deadline_s=60, store="memory://")
    change = SteerRequest(
        call=info, target="call", number=1, prompts=[[7, 8, 9]], samples=[late], release=[0, 5]
    )
    whole = msgspec.structs.replace(
        request, prompts=[*request.prompts, [7, 8, 9]], samples=[*request.samples, late]
    )
    outcome = Outcome([[] for _ in whole.samples], [[] for _ in whole.samples])
    released: list[int] = []
    for frame in engine.run(request, context):
        if isinstance(frame, Released):
            released += frame.samples
        else:
            outcome.add(frame, whole)
        if isinstance(frame, Tokens) and not released:
            context.inbox.offer(change)
    assert released == [0, 5]
    assert sorted(outcome.reasons) == [1, 2, 3, 4, 6]
    assert outcome.end.unfinished == []
    assert len(outcome.tokens[6]) == 10
    assert_the_models(outcome, whole, model)


@pytest.mark.parametrize(
    ("prompts", "task", "message"),
    [
        ([[]], SampleTask(id="a", prompt=0, seed=0, max_tokens=4), "empty"),
        ([[5]], SampleTask(id="a", prompt=0, seed=0, max_tokens=300), "context of 256"),
        ([[64]], SampleTask(id="a", prompt=0, seed=0, max_tokens=4), "vocabulary of 64"),
    ],
)
def test_requests_that_cannot_be_served(
    engine: Engine, tiny_model_dir: Path, prompts: list[list[int]], task: SampleTask, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        generate(make_request(tiny_model_dir, prompts, [task]), engine)


def test_a_model_that_vllm_would_die_of_is_refused(
    start_vllm: Callable[[EngineOptions], Engine], tmp_path: Path
) -> None:
    make_model().save_pretrained(tmp_path)  # heads of 16
    engine = start_vllm(EngineOptions(name="vllm"))
    with pytest.raises(UserError, match="heads of 32, 64") as raised:
        engine.ensure(ModelRef(path=str(tmp_path), job="job", version=0), ObjectStore("memory://"))
    assert raised.value.param == "rollout.engine"
    engine.close()
