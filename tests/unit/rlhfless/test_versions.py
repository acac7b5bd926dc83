"""Versions: one committer wins, half-written ones do not exist, collection keeps what is needed."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlhfless
from rlhfless.errors import ConflictError, TransientError
from rlhfless.objects import ObjectStore
from rlhfless.versions import (
    FileEntry,
    Manifest,
    TensorEntry,
    collect,
    commit,
    committed,
    last_checkpoint,
    latest_version,
    manifest_name,
    read_manifest,
    version_folder,
    versions,
    versions_to_delete,
)

ROOT = str(Path(rlhfless.__file__).parents[1])


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return ObjectStore(f"memory://{uuid.uuid4().hex}")
    return ObjectStore(str(tmp_path / "store"))


def manifest(version: int, call_id: str = "call", *, checkpoint: bool = False) -> Manifest:
    files = {"data": FileEntry(size=1, sha256="0")}
    if checkpoint:
        files["state"] = FileEntry(size=1, sha256="0")
    return Manifest(
        job="j",
        version=version,
        parent=version - 1,
        call_id=call_id,
        kind="full",
        tensors={"w": TensorEntry(file="data", dtype="F32", shape=[1], start=0, end=4)},
        files=files,
        attachments={"optimizer": "state"} if checkpoint else {},
        metrics={"loss": 0.5},
        train_request={"seed": 3},
        data_position={"epoch": 1},
    )


def make(store: ObjectStore, version: int, *, checkpoint: bool = False) -> None:
    made = manifest(version, f"call-{version}", checkpoint=checkpoint)
    for file in made.files:
        store.put(f"{version_folder('j', version)}/{file}", b"x")
    assert commit(store, made) == (made, True)


def files(store: ObjectStore) -> set[str]:
    return {n.removeprefix("weights/j/") for n in store.list("weights/j", unfinished=True)}


def test_nothing_trained_yet(store: ObjectStore) -> None:
    assert versions(store, "j") == []
    assert latest_version(store, "j") == 0
    assert last_checkpoint(store, "j") is None
    assert read_manifest(store, "j", 1) is None


def test_manifest_comes_back_whole(store: ObjectStore) -> None:
    made = manifest(1, checkpoint=True)
    commit(store, made)
    assert read_manifest(store, "j", 1) == made
    assert latest_version(store, "j") == 1


def test_jobs_with_names_that_begin_alike_are_apart(store: ObjectStore) -> None:
    commit(store, manifest(1))
    assert latest_version(store, "j-2") == 0
    commit(store, msgspec.structs.replace(manifest(1), job="j-2"))
    commit(store, msgspec.structs.replace(manifest(2), job="j-2"))
    assert latest_version(store, "j") == 1


def test_unknown_fields_of_a_newer_release_are_ignored(store: ObjectStore) -> None:
    newer = msgspec.to_builtins(manifest(1)) | {"invented_later": [1, 2]}
    store.create(manifest_name("j", 1), msgspec.json.encode(newer))
    assert read_manifest(store, "j", 1) == manifest(1)


def test_unreadable_manifest_is_transient_and_named(store: ObjectStore) -> None:
    store.create(manifest_name("j", 3), b"{")
    with pytest.raises(TransientError, match="version 3 of job j"):
        read_manifest(store, "j", 3)


def test_repeat_of_a_call_gets_the_first_result(store: ObjectStore) -> None:
    first, made = commit(store, manifest(1))
    again, made_again = commit(store, msgspec.structs.replace(manifest(1), metrics={"loss": 9.0}))
    assert (made, made_again) == (True, False)
    assert again == first
    assert committed(store, "j", 1, "call") == first


def test_another_call_conflicts_naming_both(store: ObjectStore) -> None:
    commit(store, manifest(1, "winner"))
    with pytest.raises(ConflictError, match=r"winner.*loser"):
        commit(store, manifest(1, "loser"))
    with pytest.raises(ConflictError, match=r"winner.*loser"):
        committed(store, "j", 1, "loser")


def test_call_too_late_cannot_revive_a_collected_version(store: ObjectStore) -> None:
    for version in (1, 2, 3):
        make(store, version, checkpoint=version == 3)
    collect(store, "j", keep_last=1)
    assert read_manifest(store, "j", 1) is None
    with pytest.raises(ConflictError, match="already at version 3"):
        commit(store, manifest(1, "call-1"))
    assert versions(store, "j") == [3]


@pytest.mark.parametrize("version", range(1, 6))
def test_threads_racing_for_a_version(tmp_path: Path, version: int) -> None:
    store = ObjectStore(str(tmp_path))
    gate = threading.Barrier(8)
    outcomes: list[str] = []

    def attempt(name: str) -> None:
        gate.wait()
        try:
            assert commit(store, manifest(version, name))[1]
            outcomes.append(name)
        except ConflictError:
            outcomes.append("")

    threads = [threading.Thread(target=attempt, args=(f"call-{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [name for name in outcomes if name]
    assert len(outcomes) == 8
    standing = read_manifest(store, "j", version)
    assert standing is not None
    assert standing.call_id == winner


RACER = """
import os, sys, time
from rlhfless.errors import ConflictError
from rlhfless.objects import ObjectStore
from rlhfless.versions import Manifest, commit
url, name, gate = sys.argv[1:]
store = ObjectStore(url)
print("ready", flush=True)
while not os.path.exists(gate):
    pass
for version in range(1, 21):
    made = Manifest(job="j", version=version, parent=version - 1, call_id=name, kind="full",
                    tensors={}, files={})
    try:
        print(version, commit(store, made)[1])
    except ConflictError:
        pass
"""


def test_processes_racing_for_versions(tmp_path: Path) -> None:
    url, gate = str(tmp_path / "store"), tmp_path / "go"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, url, f"racer-{i}", str(gate)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for i in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    gate.touch()
    won: dict[int, str] = {}
    for i, racer in enumerate(racers):
        output, _ = racer.communicate(timeout=60)
        assert racer.returncode == 0
        for line in output.splitlines():
            version, made = line.split()
            assert made == "True"
            assert int(version) not in won, "two processes made one version"
            won[int(version)] = f"racer-{i}"
    assert sorted(won) == list(range(1, 21))
    store = ObjectStore(url)
    for version, name in won.items():
        standing = read_manifest(store, "j", version)
        assert standing is not None
        assert standing.call_id == name
    assert all("tmp" not in name for name in files(store))


def test_last_checkpoint(store: ObjectStore) -> None:
    for version in range(1, 5):
        make(store, version, checkpoint=version in (1, 3))
    found = last_checkpoint(store, "j")
    assert found is not None
    assert found.version == 3


# --- collection -----------------------------------------------------------------------------


def test_which_versions_go() -> None:
    decision = versions_to_delete(range(1, 10), {2, 5}, keep_last=2)
    assert decision.versions == (1, 3, 4)
    assert decision.data == (6, 7)


def test_without_a_checkpoint_every_manifest_stays() -> None:
    decision = versions_to_delete(range(1, 6), (), keep_last=1)
    assert decision.versions == ()
    assert decision.data == (1, 2, 3, 4)


def test_keeping_none_is_refused() -> None:
    with pytest.raises(ValueError, match="keep_last"):
        versions_to_delete([1], [], keep_last=0)


@given(st.sets(st.integers(1, 40)), st.integers(1, 5), st.data())
def test_what_is_needed_is_kept(present: set[int], keep_last: int, data: st.DataObject) -> None:
    checkpoints = data.draw(st.sets(st.sampled_from(sorted(present)))) if present else set()
    decision = versions_to_delete(present, checkpoints, keep_last)
    gone = {*decision.versions, *decision.data}
    assert len(gone) == len(decision.versions) + len(decision.data)
    assert gone <= present
    assert not gone & checkpoints
    assert not gone & set(sorted(present)[-keep_last:])
    assert present - gone == checkpoints | set(sorted(present)[-keep_last:])
    assert all(v < max(checkpoints, default=0) for v in decision.versions)
    rest = present - gone
    again = versions_to_delete(rest, checkpoints, keep_last)
    assert not again.versions


def test_collection_on_a_store(store: ObjectStore) -> None:
    for version in range(1, 8):
        make(store, version, checkpoint=version in (2, 4))
    collect(store, "j", keep_last=2)
    assert files(store) == {
        "v000002/manifest.json",
        "v000002/data",  # a checkpoint's weights stay, its optimizer state does not
        "v000004/manifest.json",
        "v000004/data",
        "v000004/state",
        "v000005/manifest.json",  # how to make it again
        "v000006/manifest.json",
        "v000006/data",
        "v000007/manifest.json",
        "v000007/data",
    }
    before = files(store)
    collect(store, "j", keep_last=2)
    assert files(store) == before
    assert latest_version(store, "j") == 7


def test_leftovers_of_lost_and_crashed_writers_go(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    make(store, 1)
    store.put("weights/j/v000001/loser-00000.safetensors", b"x")
    store.put("weights/j/v000001/.tmp-killed", b"x")
    store.put("weights/j/v000002/at-work-00000.safetensors", b"x")
    store.put("weights/j/v000002/.tmp-at-work", b"x")
    collect(store, "j", keep_last=1)
    assert files(store) == {
        "v000001/manifest.json",
        "v000001/data",
        "v000002/at-work-00000.safetensors",
        "v000002/.tmp-at-work",
    }


def test_manifests_go_before_their_data(tmp_path: Path) -> None:
    deleted: list[str] = []

    class Recording(ObjectStore):
        def delete(self, name: str) -> None:
            deleted.append(name)
            super().delete(name)

    store = Recording(str(tmp_path))
    for version in range(1, 5):
        make(store, version, checkpoint=version == 4)
    collect(store, "j", keep_last=1)
    for version in (1, 2, 3):
        folder = version_folder("j", version)
        assert deleted.index(f"{folder}/manifest.json") < deleted.index(f"{folder}/data")


def test_version_committed_while_the_listing_ran_is_left_alone(tmp_path: Path) -> None:
    """The listing saw version 1's data and version 2's manifest, but came too early for 1's."""

    class SlowListing(ObjectStore):
        def list(self, prefix: str, *, unfinished: bool = False) -> list[str]:
            names = super().list(prefix, unfinished=unfinished)
            return [n for n in names if n != manifest_name("j", 1)]

    store = SlowListing(str(tmp_path))
    for version in (1, 2):
        folder = version_folder("j", version)
        store.put(f"{folder}/data", b"x")
        store.create(manifest_name("j", version), msgspec.json.encode(manifest(version)))
    collect(store, "j", keep_last=2)
    assert store.exists("weights/j/v000001/data")
