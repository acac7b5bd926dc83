"""A rollout call on vLLM, with a scripted engine in vLLM's place: whatever happens, and whenever,
every sample ends in exactly one way, and every token that was generated for it is sent once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.context import CallContext
from functions.rollout.roster import Roster
from functions.rollout.vllm_engine import generation
from functions.rollout.vllm_engine.asking import Delta, Deltas, Generate, Manner
from functions.rollout.vllm_engine.generation import Generation, Serving
from functions.rollout.vllm_engine.stats import EngineStats
from rlhfless.errors import TransientError, UserError
from rlhfless.messages import (
    Finished,
    Frame,
    Released,
    RolloutDone,
    RolloutRequest,
    SampleTask,
    SteerRequest,
    Tokens,
)
from rlhfless.seeds import derive
from tests.support.rollout import VOCABULARY, make_context, make_request, make_tasks

PROMPTS = [[4, 5, 6], [7, 8]]
TEXT = SimpleNamespace(vocab_size=VOCABULARY, max_position_embeddings=256)
CONFIG = SimpleNamespace(get_text_config=lambda: TEXT)


@pytest.fixture(autouse=True)
def _every_token_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "FLUSH_S", 0.0)


def token(request: Generate, number: int) -> int:
    return derive(request.seed, number) % VOCABULARY


class Script:
    """``asking.Asked``: generates when it is told to."""

    def __init__(self) -> None:
        self.stats = EngineStats(kv_blocks=4, block_tokens=16)
        self.dead = False
        self.epoch = 0
        self.asked: list[Generate] = []
        self.most = 0
        self.ends_first: set[int] = set()
        """Samples that end just before they are aborted."""
        self._running: dict[str, tuple[Generate, Deltas, int]] = {}

    def generate(self, requests: Sequence[Generate], manner: Manner, deltas: Deltas) -> None:
        for request in requests:
            if manner.epoch != self.epoch:
                deltas.put(Delta(request.key, end="abort"))
                continue
            self.asked.append(request)
            self._running[request.id] = request, deltas, 0
        self.most = max(self.most, len(self._running))

    def abort(self, ids: Sequence[str]) -> None:
        for name in ids:
            if name in self._running:
                request, deltas, _ = self._running[name]
                if request.key in self.ends_first:
                    self._advance(name, request.max_tokens)
                else:
                    del self._running[name]
                    deltas.put(Delta(request.key, end="abort"))

    def step(self, tokens: int = 1) -> None:
        for name in list(self._running):
            self._advance(name, tokens)

    def exchange_weights(self) -> None:
        self.epoch += 1
        self.abort(list(self._running))

    def fail(self, error: TransientError) -> None:
        for request, deltas, _ in self._running.values():
            deltas.put(Delta(request.key, error=error))
        self._running.clear()

    @property
    def num_running(self) -> int:
        return len(self._running)

    def _advance(self, name: str, most: int) -> None:
        request, deltas, begun = self._running[name]
        end = min(begun + most, request.max_tokens)
        tokens = [token(request, number) for number in range(begun, end)]
        over = end == request.max_tokens
        cached = 1 if not begun else 0
        logprobs = [-0.5] * len(tokens)
        deltas.put(Delta(request.key, tokens, logprobs, cached, "length" if over else None))
        self._running[name] = request, deltas, end
        if over:
            del self._running[name]


class Call:
    """A call whose context runs ``events``, one each time it is polled; when there are no more, the
    engine goes on a token at a time."""

    def __init__(
        self, tasks: list[SampleTask], events: Sequence[Callable[[Call], None]] = (), **request: Any
    ) -> None:
        self.request: RolloutRequest = make_request("model", PROMPTS, tasks, **request)
        self.engine = Script()
        self.context: CallContext = make_context()
        self.context.inbox.open()
        self._events = iter(events)
        self._take = self.context.take
        self.context.take = self._poll  # type: ignore[method-assign]
        self._changes = 0
        self.tasks = list(tasks)
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: list[float] = []
        self.reasons: dict[int, str] = {}
        self.released: list[int] = []
        self.done: RolloutDone | None = None
        roster = Roster.of(self.request)
        serving = Serving(CONFIG, 3, "salt", 0, self.request.max_batch or 64)
        self.generation = Generation(
            "call", self.request, roster, self.context, self.engine, serving
        )

    def run(self) -> Call:
        for frame in self.generation.frames():
            self.add(frame)
        self.done = self.generation.done()
        return self

    def add(self, frame: Frame) -> None:
        if isinstance(frame, Tokens):
            self._add_tokens(frame)
        elif isinstance(frame, Finished):
            assert not self.reasons.keys() & set(frame.samples)
            self.reasons.update(zip(frame.samples, frame.reasons, strict=True))
        elif isinstance(frame, Released):
            self.released += frame.samples

    def change(self, release: Sequence[int] = (), join: Sequence[SampleTask] = ()) -> None:
        self._changes += 1
        change = SteerRequest(
            call=self.request.call,
            target=self.request.call.id,
            number=self._changes,
            samples=list(join),
            release=list(release),
        )
        if self.context.inbox.offer(change):
            self.tasks += join

    def assert_whole(self) -> RolloutDone:
        """Every sample has one end, and the tokens that were generated for it."""
        assert self.done is not None
        ends = [*self.reasons, *self.released, *self.done.unfinished]
        assert sorted(ends) == list(range(len(self.tasks)))
        assert self.engine.num_running == 0
        generated = 0
        for sample, task in enumerate(self.tasks):
            tokens = self.tokens.get(sample, [])
            generated += len(tokens)
            assert tokens == expected(task, len(tokens))
            if sample in self.reasons:
                assert len(task.tokens) + len(tokens) == task.max_tokens
        assert self.done.generated_tokens == generated
        return self.done

    def _add_tokens(self, frame: Tokens) -> None:
        assert frame.version == 3
        self.logprobs += np.frombuffer(frame.logprobs, dtype="<f4").tolist()
        place = 0
        for sample, start, count in zip(frame.samples, frame.starts, frame.counts, strict=True):
            assert sample not in self.reasons
            assert sample not in self.released
            mine = self.tokens.setdefault(sample, [])
            assert start == len(self.tasks[sample].tokens) + len(mine)
            mine += frame.tokens[place : place + count]
            place += count

    def _poll(self) -> list[SteerRequest]:
        event = next(self._events, step)
        event(self)
        return self._take()


def expected(task: SampleTask, count: int) -> list[int]:
    request = Generate("", 0, (), 0, derive(task.seed, len(task.tokens)))
    return [token(request, number) for number in range(count)]


def step(call: Call) -> None:
    call.engine.step()


def stop(call: Call) -> None:
    call.context.stop("drain")


def weights_change(call: Call) -> None:
    call.engine.exchange_weights()


def test_a_call_ends_with_all_its_tokens() -> None:
    call = Call(make_tasks(2, 3, lambda sample: 3 + sample)).run()
    done = call.assert_whole()
    assert call.reasons == dict.fromkeys(range(6), "length")
    assert done.unfinished == []
    assert done.prefill_saved == 6
    assert done.prefill_computed == 3 * (3 + 2) - 6
    assert set(call.logprobs) == {-0.5}


def test_no_more_than_max_batch_run_together() -> None:
    call = Call(make_tasks(2, 4, 5), max_batch=3).run()
    call.assert_whole()
    assert call.engine.most == 3
    assert call.done is not None and call.done.max_batch == 3


def test_greedy_choices_are_certain() -> None:
    call = Call(make_tasks(1, 1, 4), temperature=0.0).run()
    assert call.logprobs == [0.0] * 4


def test_a_continued_sample_has_its_tokens_in_the_prompt_and_another_seed() -> None:
    fresh = make_tasks(1, 1, 9)
    call = Call([msgspec.structs.replace(fresh[0], tokens=[9, 9, 9])]).run()
    call.assert_whole()
    (asked,) = call.engine.asked
    assert asked.tokens == [4, 5, 6, 9, 9, 9]
    assert asked.max_tokens == 6
    assert asked.seed != derive(fresh[0].seed, 0)


def test_a_drain_hands_back_what_is_not_done_with_every_token_there_is() -> None:
    call = Call(make_tasks(1, 4, 10), [step, step, step, stop], max_batch=2).run()
    done = call.assert_whole()
    assert done.unfinished == [0, 1, 2, 3]
    assert [len(call.tokens.get(sample, [])) for sample in range(4)] == [2, 2, 0, 0]


def test_what_ends_just_before_it_is_aborted_has_ended() -> None:
    def almost_done(call: Call) -> None:
        call.engine.ends_first.add(1)

    call = Call(make_tasks(1, 2, 10), [step, step, almost_done, stop]).run()
    done = call.assert_whole()
    assert call.reasons == {1: "length"}
    assert done.unfinished == [0]


def test_samples_leave_wherever_they_are() -> None:
    def release(call: Call) -> None:
        call.change(release=[0, 3])

    call = Call(make_tasks(1, 4, 6), [step, step, release], max_batch=2).run()
    call.assert_whole()
    assert call.released == [0, 3]
    assert set(call.reasons) == {1, 2}
    assert len(call.tokens[0]) == 1


def test_samples_join_at_the_last_moment() -> None:
    call = Call(make_tasks(1, 1, 2))
    close = call.context.close_inbox

    def join_and_close() -> list[SteerRequest]:
        if len(call.tasks) == 1:
            call.change(join=make_tasks(1, 1, 3))
        return close()

    call.context.close_inbox = join_and_close  # type: ignore[method-assign]
    call.run().assert_whole()
    assert len(call.reasons) == 2


def test_other_weights_end_a_call_with_what_it_has() -> None:
    call = Call(make_tasks(1, 4, 6), [step, step, weights_change], max_batch=2).run()
    done = call.assert_whole()
    assert done.unfinished == [0, 1, 2, 3]
    assert len(call.engine.asked) == 2


def test_after_other_weights_nothing_is_begun_even_if_all_that_ran_is_given_up() -> None:
    def release_and_join(call: Call) -> None:
        call.change(release=[0, 1], join=make_tasks(1, 2, 5))

    call = Call(
        make_tasks(1, 3, 6), [step, step, weights_change, release_and_join], max_batch=2
    ).run()
    call.assert_whole()
    assert len(call.engine.asked) == 2


def test_weights_that_changed_before_the_first_sample_began() -> None:
    call = Call(make_tasks(1, 2, 6), [weights_change]).run()
    assert call.assert_whole().unfinished == [0, 1]
    assert call.tokens == {}


def test_a_change_that_cannot_be_carried_out_fails_after_every_token() -> None:
    def wrong(call: Call) -> None:
        call.change(release=[17])
        call.engine.step()

    call = Call(make_tasks(1, 2, 8), [step, step, step, wrong])
    with pytest.raises(UserError, match="sample 17"):
        call.run()
    assert [len(call.tokens[sample]) for sample in range(2)] == [3, 3]
    assert call.engine.num_running == 0


def test_an_engine_that_fails_is_told_of_after_every_token() -> None:
    def fail(call: Call) -> None:
        call.engine.step()
        call.engine.fail(TransientError("it is dead"))

    call = Call(make_tasks(1, 2, 8), [step, step, fail], max_batch=1)
    with pytest.raises(TransientError, match="it is dead"):
        call.run()
    assert len(call.tokens[0]) == 2


def test_an_engine_that_died_without_a_word_is_noticed() -> None:
    def die(call: Call) -> None:
        call.engine.dead = True

    call = Call(make_tasks(1, 2, 8), [step, step, die, die])
    with pytest.raises(TransientError, match="died"):
        call.run()


def test_a_reader_that_goes_away_leaves_nothing_running() -> None:
    call = Call(make_tasks(1, 3, 50))
    frames: Iterator[Any] = call.generation.frames()
    next(frames)
    assert call.engine.num_running == 3
    frames.close()  # type: ignore[attr-defined]
    assert call.engine.num_running == 0


def release_some(samples: Sequence[int]) -> Callable[[Call], None]:
    return lambda call: call.change(release=[s for s in samples if s < len(call.tasks)])


def join_some(count: int) -> Callable[[Call], None]:
    return lambda call: call.change(join=make_tasks(1, count, 4))


def almost_done(samples: Sequence[int]) -> Callable[[Call], None]:
    return lambda call: call.engine.ends_first.update(samples)


SAMPLES = st.lists(st.integers(0, 6), max_size=3, unique=True)
EVENTS = st.one_of(
    st.just(step),
    st.just(lambda call: call.engine.step(3)),
    st.just(lambda call: None),
    st.just(stop),
    st.just(weights_change),
    st.builds(release_some, SAMPLES),
    st.builds(join_some, st.integers(1, 2)),
    st.builds(almost_done, SAMPLES),
)


@given(events=st.lists(EVENTS, max_size=12), max_batch=st.integers(1, 4), count=st.integers(1, 5))
def test_every_sample_ends_in_one_way(
    events: list[Callable[[Call], None]], max_batch: int, count: int
) -> None:
    call = Call(make_tasks(1, count, lambda s: 1 + 2 * s), events, max_batch=max_batch)
    call.run().assert_whole()
