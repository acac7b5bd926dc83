"""The transformers engine: what it generates, and that nothing but seed and model decides it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from functions.context import FunctionConfig
from functions.rollout import app
from functions.rollout.transformers_engine import TransformersEngine
from functions.weights.tensors import publish
from rlhfless.errors import UserError
from rlhfless.messages import RolloutRequest, SampleTask, Tokens
from rlhfless.objects import ObjectStore
from rlhfless.seeds import derive
from tests.support.rollout import (
    Outcome,
    collect,
    generate,
    make_context,
    make_prompts,
    make_request,
    make_tasks,
)

PROMPTS = make_prompts([9, 30, 14])
LONG = make_prompts([130, 150], seed=1)  # shared by a group, these are held once


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def teacher_forced(model: Any, prompt: list[int], tokens: list[int], temperature: float) -> Any:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    scores = torch.log_softmax(logits.float() / temperature, -1)
    return scores.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1).numpy()


@pytest.mark.parametrize("prompts", [PROMPTS, LONG], ids=["expanded", "shared"])
def test_logprobs_are_the_models(tiny_model_dir: Path, model: Any, prompts: Any) -> None:
    tasks = make_tasks(len(prompts), 4, 15)
    request = make_request(tiny_model_dir, prompts, tasks, temperature=0.7)
    outcome = generate(request)
    assert outcome.reasons == dict.fromkeys(range(len(tasks)), "length")
    for task, tokens, logprobs in zip(tasks, outcome.tokens, outcome.logprobs, strict=True):
        assert len(tokens) == 15
        want = teacher_forced(model, prompts[task.prompt], tokens, 0.7)
        np.testing.assert_allclose(logprobs, want, atol=1e-4)


def test_greedy_is_the_arg_max(tiny_model_dir: Path, model: Any) -> None:
    request = make_request(tiny_model_dir, PROMPTS, make_tasks(3, 1, 10), temperature=0.0)
    outcome = generate(request)
    for prompt, tokens in zip(PROMPTS, outcome.tokens, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == tokens


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.6, "temperature": 1.3}],
    ids=str,
)
def test_first_tokens_follow_the_models_distribution(
    tiny_model_dir: Path, model: Any, sampling: dict[str, Any]
) -> None:
    """Pearson's chi-square over the tokens that are expected often enough; p = 0.001."""
    draws = 4000
    tasks = [SampleTask(id="", prompt=0, seed=derive(1, n), max_tokens=1) for n in range(draws)]
    outcome = generate(make_request(tiny_model_dir, PROMPTS[:1], tasks, **sampling))
    drawn = np.bincount([tokens[0] for tokens in outcome.tokens], minlength=64)
    with torch.no_grad():
        logits = model(torch.tensor(PROMPTS[:1])).logits[0, -1].double()
    probs = torch.softmax(logits / sampling.get("temperature", 1.0), -1)
    if k := sampling.get("top_k"):
        probs[probs < probs.topk(k).values[-1]] = 0
    if p := sampling.get("top_p"):
        ordered, index = probs.sort(descending=True)
        probs[index[ordered.cumsum(0) - ordered >= p]] = 0
    expected = draws * (probs / probs.sum()).numpy()
    assert drawn[expected == 0].sum() == 0
    often = expected >= 5
    cells = np.append(expected[often], expected[~often].sum())
    counts = np.append(drawn[often], drawn[~often].sum())
    cells, counts = cells[cells > 0], counts[cells > 0]
    statistic = float(((counts - cells) ** 2 / cells).sum())
    freedom = len(cells) - 1
    # Wilson and Hilferty's approximation of the 99.9 % point.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert statistic < limit


def whole(request: RolloutRequest, outcome: Outcome) -> list[list[int]]:
    return [task.tokens + new for task, new in zip(request.samples, outcome.tokens, strict=True)]


@pytest.mark.parametrize("prompts", [PROMPTS, LONG], ids=["expanded", "shared"])
def test_neighbours_and_batch_size_do_not_matter(tiny_model_dir: Path, prompts: Any) -> None:
    tasks = make_tasks(len(prompts), 6, lambda n: 5 + 7 * (n % 4))
    engine = TransformersEngine(torch.device("cpu"))
    full = generate(make_request(tiny_model_dir, prompts, tasks), engine)
    for max_batch in (1, 3, 7):
        request = make_request(tiny_model_dir, prompts, tasks, max_batch=max_batch)
        assert generate(request, engine).tokens == full.tokens
    alone = [generate(make_request(tiny_model_dir, prompts, [task]), engine) for task in tasks[::5]]
    assert [outcome.tokens[0] for outcome in alone] == full.tokens[::5]
    backwards = generate(make_request(tiny_model_dir, prompts, tasks[::-1], max_batch=4), engine)
    assert backwards.tokens == full.tokens[::-1]


@pytest.mark.parametrize("prompts", [PROMPTS, LONG], ids=["expanded", "shared"])
@pytest.mark.parametrize("max_batch", [0, 4])
def test_a_continued_sample_is_the_sample_it_would_have_been(
    tiny_model_dir: Path, prompts: Any, max_batch: int
) -> None:
    tasks = make_tasks(len(prompts), 4, 20)
    engine = TransformersEngine(torch.device("cpu"))
    full = generate(make_request(tiny_model_dir, prompts, tasks), engine)
    for cut in (1, 7, 19):
        cuts = [(cut + 3 * n) % 20 for n in range(len(tasks))]
        continued = [
            msgspec.structs.replace(task, tokens=full.tokens[n][: cuts[n]])
            for n, task in enumerate(tasks)
        ]
        request = make_request(tiny_model_dir, prompts, continued, max_batch=max_batch)
        outcome = generate(request, engine)
        assert whole(request, outcome) == full.tokens
        for n, logprobs in enumerate(outcome.logprobs):
            np.testing.assert_allclose(logprobs, full.logprobs[n][cuts[n] :], atol=1e-4)


def test_stop_tokens_end_a_response_and_belong_to_it(tiny_model_dir: Path) -> None:
    tasks = make_tasks(3, 4, 30)
    free = generate(make_request(tiny_model_dir, PROMPTS, tasks))
    stop = free.tokens[0][4]
    outcome = generate(
        make_request(tiny_model_dir, PROMPTS, tasks, stop_token_ids=[stop, 10**6], max_batch=5)
    )
    for n, tokens in enumerate(free.tokens):
        cut = tokens.index(stop) + 1 if stop in tokens else len(tokens)
        assert outcome.tokens[n] == tokens[:cut]
        assert outcome.reasons[n] == ("stop" if stop in tokens else "length")
    assert "stop" in outcome.reasons.values()


def test_samples_that_arrive_complete_are_finished_at_once(tiny_model_dir: Path) -> None:
    tasks = [
        SampleTask(id="a", prompt=0, seed=1, max_tokens=2, tokens=[5, 6]),
        SampleTask(id="b", prompt=0, seed=2, max_tokens=9, tokens=[5, 2]),
        SampleTask(id="c", prompt=0, seed=3, max_tokens=3, tokens=[5]),
    ]
    outcome = generate(make_request(tiny_model_dir, PROMPTS, tasks, stop_token_ids=[2]))
    assert outcome.reasons.keys() == {0, 1, 2}
    assert outcome.reasons[0] == "length"
    assert outcome.reasons[1] == "stop"
    assert outcome.tokens[:2] == [[], []]
    assert len(outcome.tokens[2]) in (1, 2)


@pytest.mark.parametrize(("prompts", "max_batch"), [(PROMPTS, 0), (PROMPTS, 5), (LONG, 3)])
def test_a_prompt_is_prefilled_once_for_its_group(
    tiny_model_dir: Path, prompts: Any, max_batch: int
) -> None:
    tasks = make_tasks(len(prompts), 8, 6)
    request = make_request(tiny_model_dir, prompts, tasks, max_batch=max_batch)
    outcome = generate(request)
    total = sum(len(prompt) for prompt in prompts)
    assert outcome.end.prefill_computed == total
    assert outcome.end.prefill_saved == 7 * total
    assert outcome.end.generated_tokens == 6 * len(tasks)
    assert outcome.end.unfinished == []


def test_slots_are_refilled_as_samples_finish(tiny_model_dir: Path) -> None:
    """A long sample among short ones: the others pass by beside it."""
    tasks = make_tasks(1, 9, lambda n: 40 if n == 0 else 10)
    request = make_request(tiny_model_dir, PROMPTS[:1], tasks, max_batch=3)
    outcome = generate(request)
    assert [len(tokens) for tokens in outcome.tokens] == [40] + [10] * 8
    # Two slots beside the long one serve eight short samples: 4 x 10 iterations, not 3 x 40.
    assert outcome.end.iterations < 45


@pytest.mark.parametrize("reason", ["drain", "deadline", "abort"])
def test_a_stopped_call_hands_back_what_is_not_done(tiny_model_dir: Path, reason: Any) -> None:
    tasks = make_tasks(3, 4, lambda n: 8 + 60 * (n % 2))
    engine = TransformersEngine(torch.device("cpu"))
    full = generate(make_request(tiny_model_dir, PROMPTS, tasks), engine)
    request = make_request(tiny_model_dir, PROMPTS, tasks, max_batch=4)
    context = make_context()
    engine.ensure(request.model, context.store)
    polls = 0

    class StopsLater(type(context)):  # type: ignore[misc]
        @property
        def stop_reason(self) -> Any:
            nonlocal polls
            polls += 1
            if polls == 40:
                self.stop(reason)
            return self._stop

    late = StopsLater(context.store, context.deadline)
    outcome = collect(engine.run(request, late), request)
    assert outcome.end.unfinished
    assert set(outcome.end.unfinished) | outcome.reasons.keys() == set(range(len(tasks)))
    assert not set(outcome.end.unfinished) & outcome.reasons.keys()
    assert outcome.end.generated_tokens == sum(map(len, outcome.tokens))
    rest = [
        msgspec.structs.replace(task, tokens=new)
        for task, new in zip(tasks, outcome.tokens, strict=True)
    ]
    again = make_request(tiny_model_dir, PROMPTS, rest)
    assert whole(again, generate(again, engine)) == full.tokens


def test_a_call_past_its_deadline_generates_nothing(tiny_model_dir: Path) -> None:
    request = make_request(tiny_model_dir, PROMPTS, make_tasks(3, 1))
    outcome = generate(request, context=make_context(seconds=-1.0))
    assert outcome.end.unfinished == [0, 1, 2]
    assert outcome.tokens == [[], [], []]


def test_tokens_are_streamed_while_generating(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from functions.rollout import generation

    monkeypatch.setattr(generation, "FLUSH_S", 0.0)
    request = make_request(tiny_model_dir, PROMPTS, make_tasks(3, 2, 10), max_batch=4)
    outcome = generate(msgspec.structs.replace(request, progress_s=0.0))
    assert [len(tokens) for tokens in outcome.tokens] == [10] * 6
    assert outcome.progress[0].running == 4
    assert outcome.progress[0].waiting == 2
    assert outcome.progress[0].kv_tokens > 0
    assert outcome.progress[-1].running == 0


def test_a_call_may_ask_for_fewer_frames(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from functions.rollout import generation

    monkeypatch.setattr(generation, "FLUSH_S", 0.0)
    engine = TransformersEngine(torch.device("cpu"))
    request = make_request(tiny_model_dir, PROMPTS, make_tasks(3, 2, 10))
    engine.ensure(request.model, make_context().store)
    counts = []
    for flush_s in (0.0, 1e9):
        asked = msgspec.structs.replace(request, flush_s=flush_s)
        frames = [f for f in engine.run(asked, make_context()) if isinstance(f, Tokens)]
        counts.append(len(frames))
        assert sum(sum(frame.counts) for frame in frames) == 6 * 10
    assert counts == [10, 1]


def test_versions_in_sequence(tiny_model_dir: Path, model: Any, tmp_path: Path) -> None:
    """Version 0, then a full version 1, then 0 again: each serves its own weights."""
    changed = {name: 1.1 * tensor.detach() for name, tensor in model.named_parameters()}
    publish(ObjectStore(str(tmp_path)), "job", 0, changed, kind="full", call_id="train")
    engine = TransformersEngine(torch.device("cpu"))
    outcomes = []
    for version in (0, 1, 0):
        request = make_request(tiny_model_dir, PROMPTS, make_tasks(3, 2), version=version)
        outcomes.append(generate(request, engine, make_context(str(tmp_path))))
        assert outcomes[-1].versions == {version}
    assert outcomes[0].tokens == outcomes[2].tokens != outcomes[1].tokens
    assert outcomes[1].end.weights_bytes > 0


@pytest.mark.parametrize(
    ("prompts", "task", "message"),
    [
        ([[]], SampleTask(id="a", prompt=0, seed=0, max_tokens=4), "empty"),
        ([[5]], SampleTask(id="a", prompt=1, seed=0, max_tokens=4), "names prompt 1 of 1"),
        ([[5]], SampleTask(id="a", prompt=0, seed=0, max_tokens=300), "context of 256"),
        ([[64]], SampleTask(id="a", prompt=0, seed=0, max_tokens=4), "vocabulary of 64"),
        ([[5]], SampleTask(id="a", prompt=0, seed=0, max_tokens=4, tokens=[-1]), "token -1"),
    ],
)
def test_requests_that_cannot_be_served(
    tiny_model_dir: Path, prompts: list[list[int]], task: SampleTask, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        generate(make_request(tiny_model_dir, prompts, [task]))


def test_the_function_serves_rollout_requests(tiny_model_dir: Path) -> None:
    function = app.create(FunctionConfig(threads=1))
    request = make_request(tiny_model_dir, PROMPTS, make_tasks(3, 2))
    handler = function.handlers[RolloutRequest]
    first = collect(handler(request, make_context()), request)
    assert first.tokens == collect(handler(request, make_context()), request).tokens
    assert first.end.unfinished == []
    function.close()
