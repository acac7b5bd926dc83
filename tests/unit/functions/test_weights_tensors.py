"""Tensors of versions: what was published comes back, or an error that names what is wrong."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch

import rlhfless
from functions.weights.tensors import holds, num_bytes, publish, pull, read_attachment
from rlhfless.errors import ConflictError, InternalError, TransientError
from rlhfless.objects import ObjectStore
from rlhfless.versions import Manifest, collect, read_manifest, version_folder

torch.set_num_threads(1)
ROOT = str(Path(rlhfless.__file__).parents[1])


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return ObjectStore(f"memory://{uuid.uuid4().hex}")
    return ObjectStore(str(tmp_path / "store"))


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(6, 4, generator=generator)
    return {
        "a.weight": matrix,
        "b.weight": torch.randn(3, 5, generator=generator).bfloat16(),
        "b.bias": torch.randn(5, generator=generator).half(),
        "transposed": torch.randn(4, 7, generator=generator).T,
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
    }


def publish_one(store: ObjectStore, call_id: str = "call", **options: Any) -> Manifest:
    return publish(store, "j", 0, tensors(), kind="full", call_id=call_id, **options)[0]


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name])


@pytest.mark.parametrize("max_file_bytes", [1, 100, 1 << 20])
def test_what_was_published_comes_back(store: ObjectStore, max_file_bytes: int) -> None:
    made = publish_one(store, max_file_bytes=max_file_bytes)
    manifest, pulled = pull(store, "j", 1)
    assert manifest == made
    assert_same(pulled, tensors())
    files = {entry.file for entry in made.tensors.values()}
    assert (len(files) == 1) == (max_file_bytes == 1 << 20)
    stored = [store.get(f"{version_folder('j', 1)}/{file}") for file in files]
    assert num_bytes(manifest) == sum(map(len, stored))


def test_byte_ranges_are_those_of_the_tensors(store: ObjectStore) -> None:
    made = publish_one(store, max_file_bytes=100)
    entry = made.tensors["a.weight"]
    data = store.get_range(f"{version_folder('j', 1)}/{entry.file}", entry.start, entry.end)
    read = torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(entry.shape)
    assert torch.equal(read, tensors()["a.weight"])
    assert (entry.dtype, made.tensors["b.weight"].dtype) == ("F32", "BF16")


def test_repeat_writes_nothing_and_returns_the_first(store: ObjectStore) -> None:
    first = publish_one(store)
    names = store.list("weights/j")
    again, made = publish(store, "j", 0, {}, kind="full", call_id="call")
    assert (again, made) == (first, False)
    assert store.list("weights/j") == names


def test_stale_parent_conflicts_and_writes_nothing(store: ObjectStore) -> None:
    publish_one(store, "first")
    names = store.list("weights/j")
    with pytest.raises(ConflictError, match=r"first.*second"):
        publish_one(store, "second")
    assert store.list("weights/j") == names


def test_no_version_without_its_parent(store: ObjectStore) -> None:
    with pytest.raises(InternalError, match="version 4 of job j does not exist"):
        publish(store, "j", 4, tensors(), kind="full", call_id="c")


def test_lora_versions_say_so(store: ObjectStore) -> None:
    with pytest.raises(InternalError, match="LoRA config"):
        publish(store, "j", 0, tensors(), kind="lora", call_id="c")


def test_writer_that_dies_before_the_manifest_leaves_no_version(store: ObjectStore) -> None:
    class Dies(ObjectStore):
        def create(self, name: str, data: bytes) -> bool:
            raise KeyboardInterrupt

    dying = Dies(store.url)
    dying._fs = store._fs  # one memory, two stores
    with pytest.raises(KeyboardInterrupt):
        publish_one(dying, "dead")
    assert read_manifest(store, "j", 1) is None
    with pytest.raises(TransientError, match="version 1 of job j is not in the store"):
        pull(store, "j", 1)
    made = publish_one(store, "alive")
    assert_same(pull(store, "j", 1)[1], tensors())
    collect(store, "j", keep_last=1)
    assert len(store.list("weights/j")) == len(made.files) + 1, "the dead writer's data is gone"
    assert_same(pull(store, "j", 1)[1], tensors())


KILLED = """
import os, signal, sys, torch
from functions.weights.tensors import publish
from rlhfless.objects import ObjectStore
class Killed(ObjectStore):
    def create(self, name, data):
        os.kill(os.getpid(), signal.SIGKILL)
publish(Killed(sys.argv[1]), "j", 0, {"w": torch.ones(1000)}, kind="full", call_id="dead")
"""


def test_writer_killed_before_the_manifest(tmp_path: Path) -> None:
    died = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, check=False, timeout=120
    )
    assert died.returncode == -9
    store = ObjectStore(str(tmp_path))
    assert store.list("weights/j"), "it had written its data"
    assert read_manifest(store, "j", 1) is None
    publish_one(store)
    assert_same(pull(store, "j", 1)[1], tensors())


@pytest.mark.parametrize("same_call", [True, False])
def test_writers_at_once(tmp_path: Path, same_call: bool) -> None:
    store = ObjectStore(str(tmp_path))
    gate = threading.Barrier(6)
    outcomes: list[tuple[str, bool | None]] = []

    def write(number: int) -> None:
        call_id = "call" if same_call else f"call-{number}"
        gate.wait()
        try:
            manifest, made = publish(store, "j", 0, tensors(number), kind="full", call_id=call_id)
            outcomes.append((manifest.tensors["a.weight"].file, made))
        except ConflictError:
            outcomes.append(("", None))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [file for file, made in outcomes if made]
    assert len(outcomes) == 6
    if same_call:
        assert outcomes.count((winner, False)) == 5, "everyone sees the one version"
    else:
        assert outcomes.count(("", None)) == 5
    manifest, pulled = pull(store, "j", 1)
    assert {entry.file for entry in manifest.tensors.values()} == {winner}
    assert any(torch.equal(pulled["a.weight"], tensors(i)["a.weight"]) for i in range(6))
    collect(store, "j", keep_last=1)
    assert len(store.list("weights/j")) == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damaged_data_is_found_and_named(store: ObjectStore, damage: str) -> None:
    made = publish_one(store, max_file_bytes=100)
    file = made.tensors["a.weight"].file
    name = f"{version_folder('j', 1)}/{file}"
    data = store.get(name)
    match damage:
        case "flip":
            store.put(name, data[:-1] + bytes([data[-1] ^ 1]))
        case "cut":
            store.put(name, data[:-1])
        case _:
            store.delete(name)
    with pytest.raises(TransientError, match=file):
        pull(store, "j", 1)


def test_tensor_the_files_do_not_hold(store: ObjectStore) -> None:
    import msgspec

    from rlhfless.versions import manifest_name

    made = publish_one(store)
    more = {**made.tensors, "z.weight": made.tensors["scalar"]}
    store.put(
        manifest_name("j", 1), msgspec.json.encode(msgspec.structs.replace(made, tensors=more))
    )
    with pytest.raises(TransientError, match=r"lacks z\.weight"):
        pull(store, "j", 1)


def test_attachments(store: ObjectStore) -> None:
    publish_one(store, attachments={"optimizer": b"moments", "rng": b"state"})
    assert read_attachment(store, "j", 1, "optimizer") == b"moments"
    assert pull(store, "j", 1)[1].keys() == tensors().keys()
    with pytest.raises(TransientError, match="no scheduler attached"):
        read_attachment(store, "j", 1, "scheduler")


def test_collected_data_is_never_half_read(store: ObjectStore) -> None:
    for parent in range(3):
        publish(store, "j", parent, tensors(parent), kind="full", call_id=f"{parent}")
    collect(store, "j", keep_last=1)
    assert read_manifest(store, "j", 1) is not None, "needed to replay: there is no checkpoint"
    with pytest.raises(TransientError, match="was collected"):
        pull(store, "j", 1)
    assert_same(pull(store, "j", 3)[1], tensors(2))


def test_pulled_tensors_outlive_their_files(tmp_path: Path) -> None:
    store = ObjectStore(str(tmp_path))
    publish_one(store)
    _, pulled = pull(store, "j", 1)
    for name in store.list("weights/j"):
        store.delete(name)
    assert_same(pulled, tensors())


def test_writer_whose_folder_is_collected_is_told_to_retry(tmp_path: Path) -> None:
    class Collected(ObjectStore):
        def put(self, name: str, data: bytes, *, durable: bool = False) -> None:
            raise FileNotFoundError(name)

    with pytest.raises(TransientError, match="was collected while call wrote"):
        publish_one(Collected(str(tmp_path)))


def test_holds(store: ObjectStore) -> None:
    made = publish_one(store, max_file_bytes=100)
    assert holds(made, tensors())
    assert not holds(made, tensors(1))
    assert not holds(made, {"a.weight": tensors()["a.weight"]})
