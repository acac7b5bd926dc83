"""The tier without an engine: a store that hangs, fails, or changes between look-up and load."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from functions.rollout.vllm_engine.kv_place import Place, nothing, transfer
from functions.rollout.vllm_engine.kv_use import KvSizes, KvUse
from functions.rollout.vllm_engine.receipts import Receipts
from functions.rollout.vllm_engine.transfers import Patience
from prefix_cache.keys import KvIdentity
from rlhfless.messages import ModelRef, PrefixUse
from rlhfless.objects import ObjectStore

pytest.importorskip("vllm", reason="vLLM is not installed; make test-vllm installs it")

from vllm.v1.kv_offload.base import LookupResult, OffloadPolicy, ReqContext
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

from functions.rollout.vllm_engine.tier import ObjectTier

CHUNK_BYTES = 4096
KEYS = [bytes([number]) * 36 for number in range(4)]
STALL_S = 0.2


@pytest.fixture
def receipts() -> Iterator[Receipts]:
    found = Receipts()
    yield found
    found.close()


class Tiers:
    """Of instances with memory of their own; ``rows``: that of the one made last."""

    def __init__(self) -> None:
        self.made: list[ObjectTier] = []
        self.rows = np.zeros((4, CHUNK_BYTES), dtype=np.int8)

    def __call__(self) -> ObjectTier:
        self.rows = np.zeros((4, CHUNK_BYTES), dtype=np.int8)
        spec: Any = None
        view = memoryview(self.rows)
        tier = ObjectTier(spec, view, "store", "layout", Patience(STALL_S, 60.0))
        self.made.append(tier)
        return tier


@pytest.fixture
def tiers() -> Iterator[Tiers]:
    made = Tiers()
    yield made
    for tier in made.made:
        tier.shutdown()


def request(
    tier: ObjectTier, store: str, receipts: Receipts, number: int = 1, **changes: Any
) -> ReqContext:
    place = Place(store, KvIdentity("m", "job", 0, "float32"), True, "call", receipts.address)
    place = msgspec.structs.replace(place, **changes)
    context = ReqContext(f"r{number}", kv_transfer_params=transfer(place, 512, load=True))
    tier.on_new_request(context)
    return context


def job(context: ReqContext, number: int, *, load: bool, keys: list[Any] = KEYS) -> TransferJob:
    chunks = np.arange(len(keys), dtype=np.int32)
    return TransferJob(number, keys, chunks, load, context)


def result(tier: ObjectTier) -> JobResult:
    while not (found := list(tier.get_finished_jobs())):
        time.sleep(0.001)
    (one,) = found
    return one


def looked_up(tier: ObjectTier, context: ReqContext, key: Any) -> LookupResult:
    while (found := tier.lookup(key, context)) is LookupResult.RETRY:
        time.sleep(0.001)
    return found


def stored(tiers: Tiers, store: str, receipts: Receipts) -> Any:
    """Publish four blocks of random bytes; what they are."""
    tier = tiers()
    data = np.random.default_rng(0).integers(-128, 127, tiers.rows.shape, dtype=np.int8)
    tiers.rows[:] = data
    receipts.begin("call")
    context = request(tier, store, receipts, 9)
    tier.submit_store(job(context, 1, load=False))
    assert result(tier).success
    tier.on_request_finished(context)
    found = receipts.wait("call", 1, 5.0)
    assert (found.published + found.present, found.ended) == (4, 1)
    return data


def test_blocks_come_back_as_they_were(tiers: Tiers, tmp_path: Path, receipts: Receipts) -> None:
    data = stored(tiers, str(tmp_path), receipts)
    tier = tiers()
    context = request(tier, str(tmp_path), receipts)
    assert tier.lookup(KEYS[0], context) is LookupResult.RETRY  # it does not wait
    assert [looked_up(tier, context, key) for key in KEYS] == [LookupResult.HIT] * 4
    assert looked_up(tier, context, b"x" * 36) is LookupResult.MISS
    tier.submit_load(job(context, 1, load=True))
    assert result(tier).success
    np.testing.assert_array_equal(tiers.rows, data)
    tier.on_request_finished(context)
    found = receipts.wait("call", 2, 5.0)
    assert (found.loads, found.loaded, found.loaded_bytes) == (1, 4, 4 * CHUNK_BYTES)


def test_another_version_job_model_or_dtype_is_a_miss(
    tiers: Tiers, tmp_path: Path, receipts: Receipts
) -> None:
    stored(tiers, str(tmp_path), receipts)
    tier = tiers()
    rows = tiers.rows
    others = [("m", "job", 1, "float32"), ("m", "other", 0, "float32")]
    for number, identity in enumerate(others):
        context = request(tier, str(tmp_path), receipts, number, identity=KvIdentity(*identity))
        assert looked_up(tier, context, KEYS[0]) is LookupResult.MISS
    for number, identity in enumerate([("n", "job", 0, "float32"), ("m", "job", 0, "bfloat16")]):
        # The same name; the header tells.
        other = request(tier, str(tmp_path), receipts, 10 + number, identity=KvIdentity(*identity))
        tier.submit_load(job(other, number, load=True, keys=KEYS[:1]))
        assert not result(tier).success
        assert not rows.any()
        stored(tiers, str(tmp_path), receipts)  # the load has thrown it away


def test_blocks_that_go_between_look_up_and_load_are_misses_from_then_on(
    tiers: Tiers, tmp_path: Path, receipts: Receipts
) -> None:
    data = stored(tiers, str(tmp_path), receipts)
    store = ObjectStore(str(tmp_path))
    tier = tiers()
    context = request(tier, str(tmp_path), receipts)
    assert [looked_up(tier, context, key) for key in KEYS] == [LookupResult.HIT] * 4
    for name in store.list("kv")[1:]:
        store.delete(name)
    tier.submit_load(job(context, 1, load=True))
    ended = result(tier)
    assert not ended.success
    assert ended.successful_keys == KEYS[:1]
    np.testing.assert_array_equal(tiers.rows[0], data[0])
    assert not tiers.rows[1:].any()
    assert [tier.lookup(key, context) for key in KEYS[1:]] == [LookupResult.MISS] * 3


def test_a_request_without_a_place_leaves_the_store_alone(
    tiers: Tiers, tmp_path: Path, receipts: Receipts
) -> None:
    tier = tiers()
    context = ReqContext("r", kv_transfer_params=nothing())
    assert tier.on_new_request(context).policy is OffloadPolicy.CHUNK_LEVEL
    assert tier.lookup(KEYS[0], context) is LookupResult.MISS
    tier.submit_store(job(context, 1, load=False))
    result(tier)
    tier.on_request_finished(context)
    only_load = request(tier, str(tmp_path), receipts, publish=False)
    tier.submit_store(job(only_load, 2, load=False))
    result(tier)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Make a method of every store hang until the test ends."""
    end = threading.Event()

    def hang(method: str) -> None:
        monkeypatch.setattr(ObjectStore, method, lambda *_: end.wait())

    yield hang
    end.set()


def test_a_store_that_hangs_is_given_up_and_left_alone(
    tiers: Tiers, tmp_path: Path, receipts: Receipts, hanging: Callable[[str], None]
) -> None:
    stored(tiers, str(tmp_path), receipts)
    hanging("exists")
    tier = tiers()
    context = request(tier, str(tmp_path), receipts)
    assert looked_up(tier, context, KEYS[0]) is LookupResult.MISS
    assert tier.lookup(KEYS[1], context) is LookupResult.MISS  # not even asked


def test_a_load_that_hangs_never_touches_memory_that_was_given_back(
    tiers: Tiers,
    tmp_path: Path,
    receipts: Receipts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored(tiers, str(tmp_path), receipts)
    tier = tiers()
    go_on, read = threading.Event(), tier._read

    def slow(*given: Any) -> Any:
        go_on.wait()
        return read(*given)

    monkeypatch.setattr(tier, "_read", slow)
    context = request(tier, str(tmp_path), receipts)
    tier.submit_load(job(context, 1, load=True))
    tier.drain_jobs()  # returns, though the store does not
    assert not result(tier).success
    go_on.set()
    tier._threads.close()
    while any(thread.name == "kv-tier" for thread in threading.enumerate() if _of(thread, tier)):
        time.sleep(0.001)
    assert not tiers.rows.any()


def _of(thread: threading.Thread, tier: ObjectTier) -> bool:
    return getattr(thread, "_target", None) == tier._threads._work


def test_a_store_that_hangs_holds_up_neither_the_engine_nor_a_prefill(
    tiers: Tiers, tmp_path: Path, receipts: Receipts, hanging: Callable[[str], None]
) -> None:
    hanging("put")
    tier = tiers()
    ref = ModelRef(path="m", job="job", version=0)
    use = PrefixUse(cuts=[], publish=True)
    kv = KvUse("call", ref, str(tmp_path), use, receipts, KvSizes(128, 32, 1 << 20))
    context = ReqContext("r", kv_transfer_params=kv.transfer([512]))
    tier.on_new_request(context)
    tier.submit_store(job(context, 1, load=False))
    assert result(tier).success  # the engine has its memory back
    tier.on_request_finished(context)
    assert kv.stored(STALL_S)[1] is False
