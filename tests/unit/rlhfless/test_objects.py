import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.batches import Batch, read_batch, write_batch
from rlhfless.errors import InternalError, TransientError, UserError
from rlhfless.objects import ObjectStore


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """The same contract on a directory and on a store without file paths."""
    return ObjectStore(str(tmp_path) if request.param == "directory" else f"memory://{tmp_path}")


def test_put_get_list_delete(store: ObjectStore) -> None:
    store.put("a/b", b"one")
    store.put("a/c/d", b"two")
    assert store.get("a/b") == b"one"
    assert store.get_range("a/c/d", 1, 3) == b"wo"
    assert store.list("a") == ["a/b", "a/c/d"]
    assert store.exists("a/b")
    store.delete("a/b")
    store.delete("a/b")
    assert store.list("a") == ["a/c/d"]
    assert store.list("nothing") == []
    with pytest.raises(FileNotFoundError):
        store.get("a/b")


def test_create_takes_a_name_once(store: ObjectStore) -> None:
    assert store.create("n", b"first")
    assert not store.create("n", b"second")
    assert store.get("n") == b"first"


def test_one_of_many_creators_wins(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    won: list[int] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        if store.create("v1", bytes([number]) * 10_000):
            won.append(number)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("v1") == bytes(won) * 10_000


def test_a_writer_that_died_leaves_nothing_to_see(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    store.put("a/whole", b"x")
    (tmp_path / "a" / ".tmp-torn-123").write_bytes(b"half")
    assert store.list("a") == ["a/whole"]


def test_emptied_folders_go_and_come_back(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    store.put("a/b/c", b"x")
    store.delete("a/b/c")
    assert not (tmp_path / "a").exists()
    store.put("a/b/c", b"y")
    assert store.get("a/b/c") == b"y"


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../up", "a/../../up"])
def test_names_stay_inside(store: ObjectStore, name: str) -> None:
    with pytest.raises(InternalError, match="bad object name"):
        store.put(name, b"x")


def test_a_url_nobody_knows() -> None:
    with pytest.raises(UserError, match="cannot open the object store"):
        ObjectStore("nosuchthing://bucket")


def test_what_the_disk_refuses_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"not a folder")
    store = ObjectStore(str(tmp_path))
    with pytest.raises(UserError, match=r"cannot write 1 bytes to .*/file/x: "):
        store.put("file/x", b"x")
    with pytest.raises(UserError, match=r"cannot write 1 bytes to .*/file/x: "):
        store.create("file/x", b"x")
    with pytest.raises(UserError, match=r"cannot read .*/file/x: Not a directory"):
        store.get("file/x")
    assert store.list("file/x") == []
    assert (tmp_path / "file").read_bytes() == b"not a folder"


def test_what_is_committed_is_synced_before_it_is_seen_and_its_folders_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(str(tmp_path))
    done: list[str] = []
    fsync, link, replace = os.fsync, os.link, os.replace

    def synced(handle: int) -> None:
        path = os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path)
        done.append("sync " + ("file" if "/.tmp-" in path else path))
        fsync(handle)

    def linked(source: str, target: str) -> None:
        done.append("link")
        link(source, target)

    def replaced(source: str, target: str) -> None:
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(os, "replace", replaced)
    store.put("w/v1/data", b"x", durable=True)
    assert done == ["sync file", "rename", "sync w/v1", "sync w", "sync ."]
    done.clear()
    assert store.create("w/v1/manifest", b"x")
    assert done == ["sync file", "link", "sync w/v1", "sync w", "sync ."]
    done.clear()
    assert not store.create("w/v1/manifest", b"y")
    assert done == ["sync file", "link"]
    done.clear()
    store.put("results/r", b"can be made again")
    assert done == ["rename"]
    done.clear()
    store.sync("results/r")
    assert done == ["sync results/r", "sync results", "sync ."]
    with pytest.raises(FileNotFoundError):
        store.sync("results/none")


def make_batch(lengths: list[tuple[int, int]]) -> Batch:
    prompts, responses = zip(*lengths, strict=True)
    count = sum(responses)
    return Batch(
        prompt_tokens=np.arange(sum(prompts), dtype=np.int32),
        prompt_lengths=np.array(prompts, np.int32),
        response_tokens=np.arange(count, dtype=np.int32),
        response_lengths=np.array(responses, np.int32),
        rollout_logprobs=-np.ones(count, np.float32),
        rewards=np.ones(len(lengths), np.float32),
        groups=np.zeros(len(lengths), np.int32),
        truncated=np.zeros(len(lengths), np.bool_),
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8))
def test_a_batch_reads_back(lengths: list[tuple[int, int]]) -> None:
    store = ObjectStore("memory://batches")
    batch = make_batch(lengths)
    ref = write_batch(store, "b", batch)
    found = read_batch(store, ref)
    assert found.reference_logprobs is None
    for name, array in vars(batch).items():
        if array is not None:
            assert (getattr(found, name) == array).all()
            assert getattr(found, name).dtype == array.dtype


def test_a_batch_that_is_gone_or_damaged(store: ObjectStore) -> None:
    ref = write_batch(store, "b", make_batch([(2, 3)]))
    store.put("b", b"something else")
    with pytest.raises(TransientError, match="checksum"):
        read_batch(store, ref)
    store.delete("b")
    with pytest.raises(TransientError, match="not in the store"):
        read_batch(store, ref)


def test_arrays_that_do_not_fit_together() -> None:
    batch = make_batch([(2, 3)])
    with pytest.raises(InternalError, match="do not fit"):
        Batch(**{**vars(batch), "rollout_logprobs": np.zeros(2, np.float32)})


def test_infos_tell_sizes_and_which_was_used_last(store: ObjectStore) -> None:
    for name, data in (("a/1", b"x"), ("a/2", b"xyz"), ("b/3", b"")):
        store.put(name, data)
    found = {info.name: info for info in store.infos("a")}
    assert {name: info.num_bytes for name, info in found.items()} == {"a/1": 1, "a/2": 3}
    assert min(info.used_s for info in found.values()) > 1.7e9
    assert store.infos("nothing") == ()
    store.touch("a/missing")
    path = store.local_path("a/1")
    if path is not None:
        os.utime(path, (1.0, 1.0))
        assert store.infos("a")[0].used_s == 1.0
    store.touch("a/1")
    assert store.infos("a")[0].used_s > 1.7e9


def test_a_file_becomes_an_object(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 3_000_000)
    store.put("files/a", b"old")
    store.put_file("files/a", str(source), durable=True)
    assert store.get("files/a") == source.read_bytes()
    assert store.list("files", unfinished=True) == ["files/a"]
    with pytest.raises(FileNotFoundError):
        store.put_file("files/b", str(tmp_path / "nothing"))
    assert store.list("files", unfinished=True) == ["files/a"]
