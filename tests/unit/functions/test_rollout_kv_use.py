"""What vLLM's requests are told of stored keys and values, and what comes back, without vLLM."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from functions.rollout.vllm_engine import kv_prefill
from functions.rollout.vllm_engine.asking import Delta, Deltas, Generate, Manner
from functions.rollout.vllm_engine.generation import Serving
from functions.rollout.vllm_engine.kv_place import nothing, place_in
from functions.rollout.vllm_engine.kv_prefill import prefill
from functions.rollout.vllm_engine.kv_use import KvSizes, KvUse, kv_token_bytes
from functions.rollout.vllm_engine.receipts import Receipt, Receipts, ReceiptSender
from functions.rollout.vllm_engine.stats import EngineStats
from functions.rollout.vllm_engine.transfers import Job, Patience, Threads
from rlhfless.errors import TransientError
from rlhfless.messages import CallInfo, ModelRef, PrefillRequest, PrefixUse, RolloutDone
from tests.conftest import make_model
from tests.support.rollout import make_context

REF = ModelRef(path="m", job="job", version=3)
SIZES = KvSizes(block_tokens=16, token_bytes=10, host_bytes=10 * 2 * 64)


@pytest.fixture
def receipts() -> Iterator[Receipts]:
    found = Receipts()
    yield found
    found.close()


def use_of(receipts: Receipts, use: PrefixUse | None, name: str = "call-1") -> KvUse:
    return KvUse(name, REF, "memory://", use, receipts, SIZES)


def test_a_request_is_told_of_whole_blocks_below_its_last_cut(receipts: Receipts) -> None:
    kv = use_of(receipts, PrefixUse(cuts=[], load=True, publish=True))
    assert [kv.stored_tokens(cuts) for cuts in ([], [15], [16], [5, 47])] == [0, 0, 16, 32]
    told = kv.transfer([5, 47])
    assert (told["max_load_tokens"], told["max_offload_tokens"]) == (32, 32)
    place = place_in(told)
    assert place is not None
    assert (place.identity.job, place.identity.version, place.publish) == ("job", 3, True)
    assert kv.transfer([15]) == nothing()


@pytest.mark.parametrize(("load", "publish"), [(True, False), (False, True), (False, False)])
def test_load_and_publish_bound_what_vllm_does(
    receipts: Receipts, *, load: bool, publish: bool
) -> None:
    told = use_of(receipts, PrefixUse(cuts=[], load=load, publish=publish)).transfer([40])
    assert told["max_load_tokens"] == (32 if load else 0)
    assert told["max_offload_tokens"] == (32 if publish else 0)
    assert (place_in(told) is not None) == (load or publish)


def test_a_call_without_prefixes_leaves_the_store_alone(receipts: Receipts) -> None:
    assert use_of(receipts, None).transfer([40]) == nothing()
    assert place_in(nothing()) is None
    assert place_in(None) is None


def test_what_was_moved_is_entered_for_its_call(receipts: Receipts) -> None:
    one, other = (use_of(receipts, PrefixUse(cuts=[]), f"call-{n}") for n in (1, 2))
    for kv in (one, other):
        kv.transfer([40])
    sender = ReceiptSender()
    sender.send(receipts.address, Receipt("call-1", loads=1, loaded=2, loaded_bytes=64, load_s=0.5))
    sender.send(receipts.address, Receipt("nobody", loads=1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for data in (b"", b"\xc1", b"\x80"):
            stranger.sendto(data, "\0" + receipts.address)
    sender.send(receipts.address, Receipt("call-1", ended=1))
    assert one.stored(5.0)[1]
    done = one.entered_in(RolloutDone(prefill_s=2.0))
    assert (done.prefill_loaded, done.kv_loads, done.kv_loaded_bytes) == (32, 1, 64)
    assert (done.prefill_s, done.kv_load_s) == (1.5, 0.5)
    assert (done.kv_token_bytes, done.kv_block_tokens) == (10, 16)
    assert other.entered_in(RolloutDone()).prefill_loaded == 0
    sender.close()


def test_a_receipt_that_nobody_reads_is_lost() -> None:
    receipts, sender = Receipts(), ReceiptSender()
    receipts.close()
    sender.send(receipts.address, Receipt("call"))
    sender.close()


def test_bytes_of_a_token_are_those_of_the_model() -> None:
    config = make_model().config
    assert kv_token_bytes(config, "float32") == 2 * 2 * 2 * 16 * 4
    assert kv_token_bytes(config, "bfloat16") == 2 * 2 * 2 * 16 * 2


# --- prefill ------------------------------------------------------------------------------------


class Answers:
    """An ``Asked`` that computes everything at once, and stores it unless ``loses``."""

    def __init__(self, *, loses: bool = False, end: Any = "length") -> None:
        self.stats = EngineStats()
        self.dead = False
        self.asked: list[list[Generate]] = []
        self.aborted: list[str] = []
        self._loses = loses
        self._end = end

    def generate(self, requests: Sequence[Generate], manner: Manner, deltas: Deltas) -> None:
        assert manner.salt == "job:3"
        self.asked.append(list(requests))
        sender = ReceiptSender()
        for request in requests:
            place = place_in(request.transfer)
            assert place is not None
            if self._end is not None:
                deltas.put(Delta(request.key, [1], [0.0], cached=4, end=self._end))
            if not self._loses:
                moved = Receipt(place.call, published=1, published_bytes=100, ended=1)
                sender.send(place.address, moved)
        sender.close()

    def abort(self, ids: Sequence[str]) -> None:
        self.aborted += ids


def prefilled(receipts: Receipts, engine: Answers, lengths: Sequence[int], **more: Any) -> Any:
    request = PrefillRequest(
        call=CallInfo(id="p", job="job", step=0, deadline_s=60, store="memory://"),
        model=REF,
        prompts=[[number] * length for number, length in enumerate(lengths)],
        cuts=[[length - 1] for length in lengths],
    )
    serving = Serving(config=None, version=3, salt="job:3", epoch=0, max_batch=0)
    use = use_of(receipts, PrefixUse(cuts=[], publish=True))
    return prefill("call-1", request, make_context(**more), engine, serving, use)


def test_a_prefill_asks_for_whole_blocks_in_waves_that_fit(receipts: Receipts) -> None:
    engine = Answers()
    done = prefilled(receipts, engine, [40, 16, 33, 100, 17])
    tokens = [[len(each.tokens) for each in wave] for wave in engine.asked]
    assert tokens == [[32, 32], [96], [16]]  # 64 together, or one alone
    assert {each.max_tokens for wave in engine.asked for each in wave} == {1}
    ids = [each.id for wave in engine.asked for each in wave]
    assert len(set(ids)) == 4
    assert done.tokens_computed == 32 + 32 + 96 + 16 - 4 * 4
    assert (done.tokens_loaded, done.published_bytes) == (16, 400)


def test_a_prefill_does_not_wait_for_ever(
    receipts: Receipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_prefill, "ARRIVE_S", 0.01)
    done = prefilled(receipts, Answers(loses=True), [40])
    assert (done.tokens_computed, done.published_bytes) == (28, 0)


def test_a_prefill_under_other_weights_is_told(receipts: Receipts) -> None:
    engine = Answers(end="abort")
    with pytest.raises(TransientError, match="other weights"):
        prefilled(receipts, engine, [40])
    assert engine.aborted == ["call-1-0-0"]


def test_a_prefill_that_is_stopped_ends_what_it_asked_for(receipts: Receipts) -> None:
    engine = Answers(end=None)
    with pytest.raises(TransientError, match="before the deadline"):
        prefilled(receipts, engine, [40], seconds=0.0)
    assert engine.aborted == ["call-1-0-0"]


# --- transfers ----------------------------------------------------------------------------------


def test_a_job_is_over_when_its_parts_are_or_nothing_moves() -> None:
    job = Job(("a", "b"))
    assert not job.over(stall_s=60.0)
    assert job.carry("a", lambda: None)
    job.fail()
    assert job.over(stall_s=60.0)
    assert job.done == ["a"]
    stalled = Job(("a",))
    while not stalled.over(stall_s=0.0):
        time.sleep(0)
    assert stalled.given_up
    moved: list[str] = []
    assert not stalled.carry("a", lambda: moved.append("a"))
    assert not moved


def test_a_store_that_was_lost_is_left_alone_for_a_while() -> None:
    patience = Patience(stall_s=0.0, alone_s=60.0)
    assert patience.answers
    patience.lost()
    assert not patience.answers


def test_threads_do_what_they_were_given_before_they_end() -> None:
    threads, done = Threads(2), threading.Semaphore(0)
    for _ in range(5):
        threads.do(lambda: done.release())
    threads.close()
    assert all(done.acquire(timeout=5) for _ in range(5))
