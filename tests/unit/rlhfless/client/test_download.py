"""Downloads of both clients: whole or not at all, through cuts and damage."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from rlhfless.client import download
from rlhfless.errors import ConflictError, InternalError, NotFoundError, TransientError, UserError
from tests.support.clients import KINDS, Cut, Kind, Script, job, outcome, page

pytestmark = pytest.mark.parametrize("kind", KINDS)
ONE = job()["id"]
FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 10, "sub/empty": b""}


def checkpoint(step: int, files: dict[str, bytes]) -> dict[str, Any]:
    return {
        "id": f"{step:06d}",
        "created_at": 1.0,
        "job": ONE,
        "step": step,
        "version": step,
        "final": False,
        "reference": f"checkpoint:{ONE}/{step}",
        "files": [
            {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in files.items()
        ],
    }


class Store(Script):
    """Serves checkpoints; ``spoil`` may change an answer with a file's content before it goes."""

    def __init__(self, files: dict[str, bytes] = FILES, steps: tuple[int, ...] = (1, 3)) -> None:
        super().__init__()
        self.files = files
        self.steps = steps
        self.spoil: list[Callable[[bytes], httpx.Response | None]] = []
        self.ranges: list[str | None] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.path.endswith("/checkpoints"):
            return page(*(checkpoint(step, self.files) for step in self.steps))
        data = self.files[request.url.path.partition("/files/")[2]]
        self.ranges.append(asked := request.headers.get("range"))
        if asked is not None:
            data = data[int(asked.removeprefix("bytes=").removesuffix("-")) :]
        if self.spoil and (answer := self.spoil.pop(0)(data)) is not None:
            return answer
        return httpx.Response(200 if asked is None else 206, content=data)


def read(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def fetch(kind: Kind, store: Store, folder: Path, step: int | None = None) -> Any:
    return outcome(kind, store, lambda client: client.jobs.download(ONE, str(folder), step=step))


def test_a_checkpoint_becomes_a_folder(kind: Kind, tmp_path: Path) -> None:
    store = Store()
    assert fetch(kind, store, tmp_path / "model") == str(tmp_path / "model")
    assert read(tmp_path / "model") == FILES
    assert os.listdir(tmp_path) == ["model"]
    assert {p.split("/")[5] for p in store.paths if "/files/" in p} == {"3"}
    before = len(store.ranges)
    fetch(kind, store, tmp_path / "model")  # it is there
    assert len(store.ranges) == before


def test_a_step_may_be_chosen(kind: Kind, tmp_path: Path) -> None:
    store = Store()
    fetch(kind, store, tmp_path / "model", step=1)
    assert {p.split("/")[5] for p in store.paths if "/files/" in p} == {"1"}
    with pytest.raises(NotFoundError) as raised:
        fetch(kind, store, tmp_path / "other", step=2)
    assert raised.value.hint == "it has those of steps 1, 3"
    with pytest.raises(NotFoundError, match="no checkpoint yet"):
        fetch(kind, Store(steps=()), tmp_path / "other")
    assert os.listdir(tmp_path) == ["model"]


def test_a_cut_file_goes_on_where_it_was_cut(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "BUFFER_BYTES", 100)
    store = Store({"big": bytes(range(256)) * 10})
    store.spoil = [
        lambda data: httpx.Response(200, stream=Cut(data[:777], data[777:1000])),
        lambda _: httpx.Response(503),
        lambda data: httpx.Response(206, stream=Cut(data[:500], broken=False)),
    ]
    fetch(kind, store, tmp_path / "model")
    assert read(tmp_path / "model") == store.files
    assert store.ranges == [None, "bytes=1000-", "bytes=1000-", "bytes=1500-"]


def test_the_next_attempt_goes_on_with_what_this_one_left(kind: Kind, tmp_path: Path) -> None:
    store = Store({"a": b"first", "big": bytes(5000)})
    store.spoil = [
        lambda _: None,
        lambda data: httpx.Response(200, stream=Cut(data[:4000])),
        *[lambda _: httpx.Response(502)] * 4,
    ]
    with pytest.raises(TransientError):
        fetch(kind, store, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    fetch(kind, store, tmp_path / "model")
    assert read(tmp_path / "model") == store.files
    assert store.ranges[-1] == "bytes=4000-"
    assert store.paths[-1].endswith("/files/big")  # and `a` is not asked for again


def test_a_service_that_knows_no_ranges_will_do(kind: Kind, tmp_path: Path) -> None:
    store = Store({"big": bytes(range(200))})
    store.spoil = [
        lambda data: httpx.Response(200, stream=Cut(data[:70])),
        lambda _: httpx.Response(200, content=store.files["big"]),
    ]
    fetch(kind, store, tmp_path / "model")
    assert read(tmp_path / "model") == store.files


def test_a_damaged_file_is_fetched_once_more(kind: Kind, tmp_path: Path) -> None:
    store = Store({"big": bytes(1000)})
    store.spoil = [lambda data: httpx.Response(200, content=b"x" + data[1:])]
    fetch(kind, store, tmp_path / "model")
    assert read(tmp_path / "model") == store.files
    store.spoil = [lambda data: httpx.Response(200, content=b"x" + data[1:])] * 2
    with pytest.raises(TransientError, match="wrong checksum, twice"):
        fetch(kind, store, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_too_long_a_file_is_not_taken(kind: Kind, tmp_path: Path) -> None:
    store = Store({"big": bytes(10)})
    store.spoil = [lambda data: httpx.Response(200, content=data * 50)] * 2
    with pytest.raises(TransientError, match="wrong checksum"):
        fetch(kind, store, tmp_path / "model")


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a//x", ".", "a\\..\\x", "a\0"])
def test_nothing_is_written_outside_of_the_folder(kind: Kind, tmp_path: Path, name: str) -> None:
    with pytest.raises(InternalError):
        fetch(kind, Store({"fine": b"", name: b"x"}), tmp_path / "model")
    assert os.listdir(tmp_path) == []


def test_what_lies_there_is_not_overwritten(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    fetch(kind, Store(), tmp_path / "model")  # an empty folder will do
    (tmp_path / "model" / "config.json").write_text("mine")
    with pytest.raises(ConflictError, match="holds something else"):
        fetch(kind, Store(), tmp_path / "model")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConflictError):
        fetch(kind, Store(), tmp_path / "file")


def test_where_nothing_can_be_written(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="cannot write"):
        fetch(kind, Store(), tmp_path / "file" / "model")
