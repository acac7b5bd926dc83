"""The KV store: what is found is what was stored, whatever happens to the bytes and the storage."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefix_cache.bounded import run_bounded
from prefix_cache.entry import BadEntryError, Header, Layout, decode_entry, encode_entry
from prefix_cache.evict import evict
from prefix_cache.keys import KvIdentity, object_name, segment_keys
from prefix_cache.store import KvStore
from rlhfless.errors import CapacityError
from rlhfless.objects import ObjectStore

MODEL = KvIdentity(path="model", job="job", version=2, dtype="float32")
LAYOUT = Layout(layers=2, heads=1, dim=4, dtype="float32")
TOKENS = 3
SIZE = TOKENS * LAYOUT.token_bytes
KEYS = segment_keys(MODEL, list(range(40)), list(range(1, 11)))
KEY = KEYS[0]
HEADER = Header(KEY, MODEL, LAYOUT.shape(TOKENS), "float32")


def data(seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8)


def make_store(model: KvIdentity = MODEL, **options: Any) -> KvStore:
    store = KvStore(**options)
    store.use(model, LAYOUT)
    return store


@pytest.fixture(params=["directory", "memory"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return ObjectStore(str(tmp_path) if request.param == "directory" else f"memory://{tmp_path}")


def published(objects: ObjectStore, seed: int = 0) -> str:
    """Store an entry; its object's name."""
    assert make_store().publish({KEY: (TOKENS, data(seed))}, objects) > SIZE
    return object_name(MODEL, KEY)


def test_another_instance_finds_what_was_published(objects: ObjectStore) -> None:
    published(objects)
    store = make_store()
    found = store.get({KEY: TOKENS, KEYS[1]: TOKENS}, objects)
    assert found.keys() == {KEY}
    assert found[KEY].source == "store"
    np.testing.assert_array_equal(found[KEY].data, data())
    again = store.get({KEY: TOKENS}, objects)
    assert again[KEY].source == "memory"
    assert (store.counters.store_hits, store.counters.memory_hits) == (1, 1)
    assert store.counters.misses == 1
    assert make_store().get({KEY: TOKENS}, None) == {}


def test_names_lie_in_the_versions_folder(objects: ObjectStore) -> None:
    assert published(objects) == f"kv/job/v000002/{KEY}"
    assert objects.list("kv/job/v000002") == [f"kv/job/v000002/{KEY}"]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_no_damage_goes_unnoticed(draw: st.DataObject) -> None:
    entry = np.frombuffer(bytearray(encode_entry(HEADER, data())), np.uint8)
    np.testing.assert_array_equal(decode_entry(entry, HEADER), data())
    kind = draw.draw(st.sampled_from(["flip", "cut", "grow", "zero"]))
    place = draw.draw(st.integers(0, len(entry) - 1))
    if kind == "flip":
        bad = entry.copy()
        bad[place] ^= 1 << draw.draw(st.integers(0, 7))
    elif kind == "cut":
        bad = entry[:place]
    elif kind == "grow":
        bad = np.concatenate((entry, entry[: place + 1]))
    else:
        bad = entry.copy()
        bad[place:] = 0
    try:
        again = decode_entry(bad, HEADER)
    except BadEntryError:
        return
    # Only padding, or zeros where there were zeros, may differ.
    np.testing.assert_array_equal(again, data())


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "other"])
def test_a_bad_entry_is_a_miss_and_is_stored_again(objects: ObjectStore, damage: str) -> None:
    name = published(objects)
    whole = objects.get(name)
    bad = {
        "flip": whole[:-1] + bytes([whole[-1] ^ 1]),
        "truncate": whole[: len(whole) // 2],
        "empty": b"",
        "other": b"something else altogether" * 10,
    }[damage]
    objects.put(name, bad)
    store = make_store()
    assert store.get({KEY: TOKENS}, objects) == {}
    assert store.counters.bad == 1
    assert store.absent([KEY], objects) == [KEY]
    published(objects)
    np.testing.assert_array_equal(store.get({KEY: TOKENS}, objects)[KEY].data, data())


@pytest.mark.parametrize(
    "change",
    [
        {"identity": msgspec.structs.replace(MODEL, version=1)},
        {"identity": msgspec.structs.replace(MODEL, path="other")},
        {"key": KEYS[1]},
        {"shape": LAYOUT.shape(TOKENS)[::-1]},
        {"dtype": "float16"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whole_bytes_under_a_wrong_name_are_not_taken(
    objects: ObjectStore, change: dict[str, Any]
) -> None:
    other = msgspec.structs.replace(HEADER, **change)
    objects.put(object_name(MODEL, KEY), encode_entry(other, data()))
    store = make_store()
    assert store.get({KEY: TOKENS}, objects) == {}
    assert store.counters.bad == 1


def test_memory_holds_one_version_and_the_last_used_up_to_its_bound() -> None:
    store = make_store(memory_bytes=3 * SIZE)
    for number in range(3):
        store.keep(KEYS[number], data(number))
    store.get({KEYS[0]: TOKENS}, None)
    store.keep(KEYS[3], data(3))
    assert store.held_bytes == 3 * SIZE
    assert store.get(dict.fromkeys(KEYS, TOKENS), None).keys() == {KEYS[0], KEYS[2], KEYS[3]}
    store.keep(KEYS[4], np.zeros(4 * SIZE, np.uint8))
    assert store.held_bytes == 3 * SIZE
    store.use(MODEL, LAYOUT)
    assert store.held_bytes == 3 * SIZE
    store.use(msgspec.structs.replace(MODEL, version=3), LAYOUT)
    assert store.held_bytes == 0
    store.use(MODEL, LAYOUT)
    assert store.get(dict.fromkeys(KEYS, TOKENS), None) == {}


class Storage(ObjectStore):
    """An object store that fails or hangs as it is told."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.error: Exception | None = None
        self.hang: threading.Event | None = None
        self.calls = 0

    def local_path(self, name: str) -> str | None:
        return None

    def get(self, name: str) -> bytes:
        self._obey()
        return super().get(name)

    def put(self, name: str, data: bytes) -> None:
        self._obey()
        super().put(name, data)

    def _obey(self) -> None:
        self.calls += 1
        if self.hang is not None:
            self.hang.wait(60)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "broken"), PermissionError("no"), RuntimeError("driver")], ids=repr
)
def test_a_store_that_fails_is_a_miss(tmp_path: Path, error: Exception) -> None:
    storage = Storage(str(tmp_path))
    published(storage)
    storage.error = error
    store = make_store()
    assert store.get({KEY: TOKENS}, storage) == {}
    assert store.publish({KEYS[1]: (TOKENS, data())}, storage) == 0
    assert (store.counters.failed, store.counters.not_published) == (2, 1)
    assert type(error).__name__ in store.counters.last_problem
    storage.error = None
    assert store.get({KEY: TOKENS}, storage).keys() == {KEY}


def test_a_full_store_is_left_alone_for_a_while(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    now = 0.0
    store = make_store(clock=lambda: now, retry_s=5)
    storage.error = CapacityError("no space left")
    assert store.publish({KEY: (TOKENS, data())}, storage) == 0
    assert store.publish({KEY: (TOKENS, data())}, storage) == 0
    assert storage.calls == 1
    assert store.counters.not_published == 2
    now, storage.error = 6.0, None
    assert store.publish({KEY: (TOKENS, data())}, storage) > 0


def test_a_slow_store_is_given_up_and_left_alone_for_a_while(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    published(storage)
    storage.hang = threading.Event()
    now = 0.0
    store = make_store(timeout_s=0.05, retry_s=5, clock=lambda: now)
    before = storage.calls
    assert store.get({KEY: TOKENS}, storage) == {}
    assert store.counters.slow == 1
    assert store.get({KEY: TOKENS}, storage) == {}
    assert store.publish({KEY: (TOKENS, data())}, storage) == 0
    assert store.absent([KEY], storage) == []
    assert storage.calls == before + 1
    storage.hang.set()
    now = 6.0
    assert store.get({KEY: TOKENS}, storage).keys() == {KEY}


def test_an_instance_publishes_no_more_than_its_share(objects: ObjectStore) -> None:
    store = make_store(publish_bytes=5 * SIZE // 2)
    segments = {key: (TOKENS, data(n)) for n, key in enumerate(KEYS[:4])}
    assert store.publish(segments, objects) > 2 * SIZE
    assert store.counters.not_published == 2
    assert len(objects.list("kv")) == 2
    store.use(msgspec.structs.replace(MODEL, version=3), LAYOUT)
    assert store.publish({KEY: (TOKENS, data())}, objects) > 0


def test_absent_tells_what_is_to_be_published(objects: ObjectStore) -> None:
    published(objects)
    assert make_store().absent(KEYS[:3], objects) == list(KEYS[1:3])


# --- several processes and threads --------------------------------------------------------------


def _write_and_read(url: str, times: int, ready: Any, results: Any) -> None:
    objects = ObjectStore(url)
    ready.wait()
    wrong = 0
    for _ in range(times):
        make_store().publish({KEY: (TOKENS, data())}, objects)
        store = make_store()
        found = store.get({KEY: TOKENS}, objects)
        wrong += store.counters.bad
        wrong += KEY not in found or not np.array_equal(found[KEY].data, data())
    results.put(wrong)


def test_two_processes_write_one_key(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(2), context.Queue()
    writers = [
        context.Process(target=_write_and_read, args=(str(tmp_path), 50, ready, results))
        for _ in range(2)
    ]
    for writer in writers:
        writer.start()
    assert [results.get(timeout=60) for _ in writers] == [0, 0]
    for writer in writers:
        writer.join()
    assert os.listdir(tmp_path / "kv/job/v000002") == [KEY]


def test_eviction_beside_readers_and_writers(tmp_path: Path) -> None:
    objects = ObjectStore(str(tmp_path))
    over = threading.Event()

    def evict_again_and_again() -> None:
        while not over.is_set():
            evict(objects, "job", keep_version=3, max_bytes=0)

    evictor = threading.Thread(target=evict_again_and_again)
    evictor.start()
    for number in range(60):
        make_store().publish({KEY: (TOKENS, data(number))}, objects)
        store = make_store()
        found = store.get({KEY: TOKENS}, objects)
        assert store.counters.bad == store.counters.failed == 0
        if KEY in found:
            np.testing.assert_array_equal(found[KEY].data, data(number))
    over.set()
    evictor.join()


# --- eviction -----------------------------------------------------------------------------------


def test_eviction_drops_old_versions_then_the_least_recently_used(tmp_path: Path) -> None:
    objects = ObjectStore(str(tmp_path))
    for version in (1, 2, 3):
        model = msgspec.structs.replace(MODEL, version=version)
        store = make_store(model)
        store.publish({key: (TOKENS, data()) for key in KEYS[:3]}, objects)
    for age, key in enumerate(KEYS[:3]):
        path = objects.local_path(f"kv/job/v000002/{key}")
        assert path is not None
        os.utime(path, (1000 + age, 1000 + age))
    objects.put("kv/other/v000001/x", b"another job's")
    left = tmp_path / "kv/job/v000001/.tmp-dead-writer"
    left.write_bytes(b"half")
    store = make_store()
    store.get({KEYS[0]: TOKENS}, objects)  # used just now
    each = os.path.getsize(tmp_path / "kv/job/v000002" / KEYS[0])
    gone = evict(objects, "job", keep_version=2, max_bytes=5 * each)
    assert gone == (4, 4 * each, 5 * each)
    assert not (tmp_path / "kv/job/v000001").exists()
    assert sorted(os.listdir(tmp_path / "kv/job/v000002")) == sorted((KEYS[0], KEYS[2]))
    assert len(os.listdir(tmp_path / "kv/job/v000003")) == 3
    assert objects.exists("kv/other/v000001/x")
    assert evict(objects, "job", keep_version=2, max_bytes=5 * each) == (0, 0, 5 * each)


def test_nothing_to_evict(objects: ObjectStore) -> None:
    assert evict(objects, "job", keep_version=5, max_bytes=0) == (0, 0, 0)


# --- calls that hang ----------------------------------------------------------------------------


def test_bounded_calls_keep_order_and_survive_each_other() -> None:
    def fail() -> int:
        raise ValueError("no")

    results = run_bounded([lambda: 1, fail, lambda: 3], 10.0)
    assert results[0] == 1
    assert isinstance(results[1], ValueError)
    assert results[2] == 3
    assert run_bounded([], 1.0) == []


def test_bounded_calls_that_have_not_begun_never_do() -> None:
    stuck, begun = threading.Event(), []

    def hang(number: int) -> None:
        begun.append(number)
        stuck.wait(60)

    results = run_bounded([lambda n=n: hang(n) for n in range(20)], 0.05)  # type: ignore[misc]
    assert all(isinstance(result, TimeoutError) for result in results)
    stuck.set()
    assert len(begun) <= 8
