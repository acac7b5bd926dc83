"""Samples that join running calls, leave them and go on elsewhere are the samples they would have
been; and every change is carried out, or ends the call with a clear error."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from functions.context import CallContext
from functions.rollout import app, generation
from functions.rollout.transformers_engine import TransformersEngine
from rlhfless.errors import UserError
from rlhfless.messages import (
    Frame,
    Released,
    RolloutRequest,
    SampleTask,
    SteerRequest,
    Tokens,
)
from tests.support.rollout import (
    generate,
    make_context,
    make_prompts,
    make_request,
    make_tasks,
)
from tests.support.steering import CallRecord, Responses, assert_same, continued, fresh

SHORT = make_prompts([9, 30, 14])
LONG = make_prompts([130, 150], seed=1)  # shared by a group, these are held once
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.9},
    {"temperature": 1.2, "top_p": 0.7},
    {"top_k": 7, "stop_token_ids": [5, 9]},
]


@pytest.fixture(autouse=True)
def _one_thread_and_every_token_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(generation, "FLUSH_S", 0.0)


@pytest.fixture(scope="module")
def generic_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another family: it takes the generic decoder."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_embd=48, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3
    )
    folder = tmp_path_factory.mktemp("generic-model")
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def engines(tiny_model_dir: Path, generic_model_dir: Path) -> dict[str, TransformersEngine]:
    made = {}
    for name, folder in (("lean", tiny_model_dir), ("generic", generic_model_dir)):
        made[name] = TransformersEngine(torch.device("cpu"))
        made[name].ensure(make_request(folder, [], []).model, make_context().store)
    return made


def change(request: RolloutRequest, number: int, **others: Any) -> SteerRequest:
    return SteerRequest(call=request.call, target=request.call.id, number=number, **others)


class Call(CallRecord):
    """A running call, a frame at a time."""

    def __init__(
        self,
        engine: TransformersEngine,
        request: RolloutRequest,
        responses: Responses,
        context: CallContext | None = None,
    ) -> None:
        super().__init__(request, responses)
        self.context = context or make_context()
        self.context.inbox.open()
        self._frames = engine.run(request, self.context)

    def steer(self, **contents: Any) -> bool:
        change = self.change(**contents)
        accepted = self.context.inbox.offer(change)
        if accepted:
            self.expect(change)
        return accepted

    def advance(self, frames: int = 1) -> list[str]:
        """The samples that were released meanwhile."""
        released: list[str] = []
        for _ in range(frames):
            frame = next(self._frames, None)
            if frame is not None:
                released += self.take(frame)
        return released

    def finish(self) -> list[str]:
        released = [sample for frame in self._frames for sample in self.take(frame)]
        self.assert_answered()
        return released


def shuffled(
    engine: TransformersEngine,
    request: RolloutRequest,
    rng: random.Random,
    responses: Responses,
) -> list[Call]:
    """Generate the request by calls between which samples are moved at random."""
    ids = {task.id: task for task in request.samples}

    def begin(tasks: list[SampleTask]) -> Call:
        tasks = [continued(task, responses) for task in tasks]
        max_batch = rng.choice((0, 2, 3))
        return Call(
            engine,
            msgspec.structs.replace(request, samples=tasks, max_batch=max_batch),
            responses,
        )

    half = len(request.samples) // 2
    live = [begin(request.samples[:half]), begin(request.samples[half:])]
    calls = list(live)
    homeless: list[str] = []
    while live:
        for call in list(live):
            if rng.random() < 0.3 and call.here:
                some = rng.sample(sorted(call.here), rng.randint(1, len(call.here)))
                ended = [n for n, t in enumerate(call.tasks) if responses[t.id].reason][:2]
                call.steer(release=[call.index_of(sample) for sample in some] + ended)
            homeless += call.advance(rng.randint(1, 6))
            if call.done is not None:
                call.assert_answered()
                assert call.done.unfinished == []
                live.remove(call)
        if homeless and rng.random() < 0.7:
            tasks = [continued(ids[sample], responses) for sample in homeless]
            call = rng.choice(calls)
            if rng.random() < 0.5:  # by prompts of its own, not by those the call has
                own = [request.prompts[task.prompt] for task in tasks]
                numbers = range(len(call.prompts), len(call.prompts) + len(own))
                moved = [
                    msgspec.structs.replace(task, prompt=number)
                    for task, number in zip(tasks, numbers, strict=True)
                ]
                accepted = call.steer(prompts=own, samples=moved)
            else:
                accepted = call.steer(samples=tasks)
            assert accepted == (call.done is None)
            if not accepted:
                live.append(begin([ids[sample] for sample in homeless]))
                calls.append(live[-1])
            homeless = []
        if not live and homeless:
            live.append(begin([ids[sample] for sample in homeless]))
            calls.append(live[-1])
            homeless = []
    return calls


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("prompts", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("decoder", ["lean", "generic"])
def test_samples_moved_at_random_are_what_they_would_have_been(
    engines: dict[str, TransformersEngine],
    decoder: str,
    prompts: list[list[int]],
    sampling: dict[str, Any],
    seed: int,
) -> None:
    tasks = make_tasks(len(prompts), 4, lambda n: 6 + 5 * (n % 5))
    request = make_request("", prompts, tasks, **sampling)
    engine = engines[decoder]
    whole = fresh(tasks)
    Call(engine, request, whole).finish()
    responses = fresh(tasks)
    calls = shuffled(engine, request, random.Random(seed), responses)
    assert len(calls) > 2 or any(len(call.tasks) > len(tasks) // 2 for call in calls)
    assert_same(responses, whole)
    assert all(call.done is not None and call.done.prefill_saved >= 0 for call in calls)


class Scripted(CallContext):
    """Gets changes at given looks into its inbox."""

    def __init__(self, at: dict[int, SteerRequest], closing: SteerRequest | None = None) -> None:
        base = make_context()
        super().__init__(base.store, base.deadline)
        self.inbox.open()
        self._at = at
        self._closing = closing
        self._looks = 0

    def take(self) -> list[SteerRequest]:
        self._looks += 1
        if self._looks in self._at:
            assert self.inbox.offer(self._at[self._looks])
        return super().take()

    def close_inbox(self) -> list[SteerRequest]:
        if self._closing is not None:
            assert self.inbox.offer(self._closing)
            self._closing = None
        return super().close_inbox()


def frames_until_error(frames: Iterator[Frame]) -> tuple[list[Frame], UserError]:
    seen: list[Frame] = []
    with pytest.raises(UserError) as raised:
        for frame in frames:
            seen.append(frame)  # noqa: PERF402
    return seen, raised.value


@pytest.mark.parametrize(
    ("wrong", "message", "param"),
    [
        ({"prompts": [[]]}, "prompt 3 is empty", "prompts[3]"),
        ({"prompts": [[64]]}, "vocabulary of 64", "prompts[3]"),
        ({"samples": [{"prompt": 3}]}, "names prompt 3 of 3", "samples[6].prompt"),
        ({"samples": [{"prompt": -1}]}, "names prompt -1 of 3", "samples[6].prompt"),
        ({"samples": [{"tokens": [99]}]}, "token 99", "samples[6].tokens"),
        ({"samples": [{"max_tokens": 300}]}, "context of 256", "samples[6].max_tokens"),
        ({"release": [6]}, "sample 6 of 6", "release"),
        ({"release": [-1]}, "sample -1 of 6", "release"),
    ],
    ids=str,
)
def test_a_change_that_cannot_be_is_a_clear_error_and_costs_no_token(
    engines: dict[str, TransformersEngine],
    monkeypatch: pytest.MonkeyPatch,
    wrong: dict[str, Any],
    message: str,
    param: str,
) -> None:
    monkeypatch.setattr(generation, "FLUSH_S", 1e9)
    request = make_request("", SHORT, make_tasks(3, 2, 40))
    task = {"id": "x", "prompt": 0, "seed": 1, "max_tokens": 5}
    others = dict(wrong)
    if "samples" in wrong:
        others["samples"] = [SampleTask(**(task | sample)) for sample in wrong["samples"]]
    context = Scripted({8: change(request, 1, **others)})
    frames, error = frames_until_error(engines["lean"].run(request, context))
    assert message in error.detail
    assert error.param == param
    (tokens,) = frames
    assert isinstance(tokens, Tokens)
    assert tokens.counts == [7] * 6


def test_what_joins_as_the_last_sample_ends_is_generated(
    engines: dict[str, TransformersEngine],
) -> None:
    tasks = make_tasks(3, 2, 8)
    request = make_request("", SHORT, tasks[:3])
    responses = fresh(tasks)
    late = change(request, 1, samples=tasks[3:])
    call = Call(engines["lean"], request, responses, Scripted({}, closing=late))
    call.expect(late)
    call.finish()
    assert {r.reason for r in responses.values()} == {"length"}
    assert not call.context.inbox.offer(change(request, 2, release=[0]))


def test_a_stopped_call_answers_for_what_it_was_given(
    engines: dict[str, TransformersEngine],
) -> None:
    tasks = make_tasks(3, 2, 30)
    request = make_request("", SHORT, tasks[:4], max_batch=3)
    call = Call(engines["lean"], request, fresh(tasks))
    call.advance(5)
    assert call.steer(samples=tasks[4:], release=[0, 3])
    call.context.stop("drain")
    assert sorted(call.finish()) == ["0", "3"]
    assert call.done is not None
    assert call.done.unfinished == [1, 2, 4, 5]
    assert not call.steer(release=[1])


def test_complete_samples_that_join_are_finished_at_once(
    engines: dict[str, TransformersEngine],
) -> None:
    tasks = make_tasks(1, 4, 6)
    done = msgspec.structs.replace(tasks[3], tokens=[7] * 6)
    call = Call(engines["lean"], make_request("", SHORT, tasks[:3]), fresh([*tasks[:3], done]))
    call.advance(2)
    assert call.steer(samples=[done])
    call.advance()
    assert call.responses["3"].reason == "length"
    call.finish()


def test_a_call_without_samples_can_be_given_some_before_it_looks(
    engines: dict[str, TransformersEngine],
) -> None:
    tasks = make_tasks(2, 3, 9)
    call = Call(engines["lean"], make_request("", [], []), fresh(tasks))
    assert call.steer(prompts=LONG, samples=tasks)
    call.finish()
    assert call.done is not None
    assert call.done.generated_tokens == 6 * 9


def test_released_rows_make_room_for_those_that_wait(
    engines: dict[str, TransformersEngine],
) -> None:
    tasks = make_tasks(1, 3, 20)
    responses = fresh(tasks)
    call = Call(engines["lean"], make_request("", SHORT, tasks, max_batch=1), responses)
    call.advance(3)
    assert [len(r.tokens) for r in responses.values()] == [3, 0, 0]
    call.steer(release=[0])
    assert call.advance(2) == ["0"]
    assert [len(r.tokens) for r in responses.values()] == [3, 1, 0]


def test_a_prompt_whose_samples_are_gone_can_come_back(tiny_model_dir: Path) -> None:
    """Shared: its keys and values went with its last reader, and are computed again."""
    tasks = make_tasks(2, 4, 12)
    request = make_request(tiny_model_dir, LONG, tasks)
    engine = TransformersEngine(torch.device("cpu"))
    whole = generate(request, engine)
    responses = fresh(tasks)
    call = Call(engine, request, responses)
    call.advance(4)
    call.steer(release=[0, 1, 2, 3])
    call.advance(3)
    call.steer(samples=[continued(task, responses) for task in tasks[:4]])
    call.finish()
    assert [r.tokens for r in responses.values()] == whole.tokens
    assert call.done is not None
    assert call.done.prefill_computed == 2 * 130 + 150 + 4 * 4


def test_the_function_can_be_steered_while_it_pulls_weights(tiny_model_dir: Path) -> None:
    request = make_request(tiny_model_dir, SHORT, make_tasks(3, 2))
    context = make_context()

    class Engine(TransformersEngine):
        def ensure(self, *arguments: Any) -> Any:
            assert context.inbox.offer(change(request, 1, release=[0, 5]))
            return super().ensure(*arguments)

    function = app.Rollout(Engine(torch.device("cpu")))
    frames = list(function.rollout(request, context))
    assert [f.samples for f in frames if isinstance(f, Released)] == [[0, 5]]
    function.close()
