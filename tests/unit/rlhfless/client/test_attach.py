"""Jobs of this machine as they are submitted, against a service that keeps files."""

import hashlib
import io
import json
import tarfile
import tempfile
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path
from typing import Any

import httpx
import pytest

from rlhfless.errors import UserError
from rlhfless.spec_file import load_spec
from tests.support.clients import KINDS, Kind, Script, document, job, outcome, page

pytestmark = pytest.mark.parametrize("kind", KINDS)


class Keeping(Script):
    """Keeps files as the service does, and the job that was submitted."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, dict[str, Any]] = {}
        self.contents: dict[str, bytes] = {}
        self.job: dict[str, Any] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        match request.method, request.url.path:
            case "GET", "/v1/files":
                return page(*self.files.values())
            case "POST", "/v1/files":
                return document(**self._keep(request))
            case "POST", "/v1/jobs":
                self.job = json.loads(request.content)
                return document(**job())
        raise AssertionError(request)

    def _keep(self, request: httpx.Request) -> dict[str, Any]:
        kind = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
        form = {
            part.get_param("name", header="content-disposition"): part
            for part in BytesParser(policy=HTTP).parsebytes(kind + request.content).iter_parts()
        }
        content = form["file"].get_payload(decode=True)
        id_ = f"file-{len(self.files):024x}"
        self.contents[id_] = content
        self.files[id_] = {
            "id": id_,
            "created_at": 1.0,
            "filename": form["file"].get_filename(),
            "purpose": form["purpose"].get_payload(),
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        return self.files[id_]

    @property
    def uploads(self) -> list[tuple[str, str]]:
        return [(file["purpose"], file["filename"]) for file in self.files.values()]

    def members(self, reference: str) -> dict[str, bytes]:
        with tarfile.open(fileobj=io.BytesIO(self.contents[reference])) as tar:
            return {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job file and all it names. Nothing may be left in the folder of temporary files."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    model = tmp_path / "model"
    (model / ".git").mkdir(parents=True)
    (model / ".git" / "config").write_text("hidden")
    (model / "config.json").write_text("{}")
    (tmp_path / "blob").write_bytes(b"weights")
    (model / "model.safetensors").symlink_to(tmp_path / "blob")
    (tmp_path / "data.jsonl").write_text('{"prompt": "x"}\n')
    (tmp_path / "alone.py").write_text("def f(**_): ...\ndef g(**_): ...\n")
    (tmp_path / "rewards.py").write_text("import parsing\ndef h(**_): ...\n")
    (tmp_path / "parsing.py").write_text("")
    return tmp_path


def write(folder: Path, **changes: Any) -> str:
    spec = {
        "model": {"path": "model"},
        "dataset": {"path": "data.jsonl"},
        "rewards": [{"python": "alone.py:f"}],
    }
    (folder / "job.yaml").write_text(json.dumps(spec | changes))
    return str(folder / "job.yaml")


def submit(kind: Kind, service: Keeping, spec: Any) -> dict[str, Any]:
    outcome(kind, service, lambda client: client.jobs.submit(spec))
    return service.job


def test_all_that_lies_here_is_uploaded_once(kind: Kind, folder: Path) -> None:
    rewards = [
        {"python": f"{name}:{function}"}
        for name, function in (("alone.py", "f"), ("alone.py", "g"), ("rewards.py", "h"))
    ]
    path = write(
        folder,
        evaluation={"dataset": {"path": "data.jsonl"}},
        rewards=[*rewards, {"model": "model"}],
    )
    service = Keeping()
    sent = submit(kind, service, path)
    assert service.uploads == [
        ("model", "model.tar"),
        ("dataset", "data.jsonl"),
        ("reward", "alone.py"),
        ("reward", "rewards.tar"),
    ]
    model, data, alone, tar = service.files
    assert sent["model"]["path"] == model
    assert sent["dataset"]["path"] == sent["evaluation"]["dataset"]["path"] == data
    assert [reward["python"] for reward in sent["rewards"][:3]] == [
        f"{alone}:f",
        f"{alone}:g",
        f"{tar}/rewards.py:h",
    ]
    assert (sent["rewards"][3]["model"], sent["rewards"][3]["name"]) == (model, "model")
    assert service.members(model) == {"config.json": b"{}", "model.safetensors": b"weights"}
    assert sorted(service.members(tar)) == ["parsing.py", "rewards.py"]
    assert service.contents[data] == (folder / "data.jsonl").read_bytes()
    assert list((folder / "temporary").iterdir()) == []

    (folder / "model" / "config.json").touch()  # later, but the same
    assert submit(kind, service, path) == sent
    assert len(service.files) == 4


def test_the_same_content_is_sent_once_whatever_it_is_called(kind: Kind, folder: Path) -> None:
    (folder / "eval.jsonl").write_bytes((folder / "data.jsonl").read_bytes())
    service = Keeping()
    sent = submit(kind, service, write(folder, evaluation={"dataset": {"path": "eval.jsonl"}}))
    assert sent["evaluation"]["dataset"]["path"] == sent["dataset"]["path"]
    assert len(service.files) == 3


def test_what_the_service_has_stays(kind: Kind, folder: Path) -> None:
    named = {
        "model": {"path": f"checkpoint:{job()['id']}/3"},
        "dataset": {"path": "library:quickstart/data/train.jsonl"},
        "evaluation": {"dataset": {"path": "https://example.com/data.jsonl"}},
        "rewards": [
            {"python": "library:quickstart/rewards.py:exact_match"},
            {"python": f"file-{1:024x}/rewards.py:f"},
            {"python": f"file-{1:024x}:g"},
            {"model": "org/model"},
            {"http": "https://example.com"},
        ],
    }
    service = Keeping()
    sent = submit(kind, service, write(folder, **named))
    assert sent["model"]["path"] == f"checkpoint:{job()['id']}/3"
    assert sent["dataset"]["path"] == "library:quickstart/data/train.jsonl"
    assert sent["evaluation"]["dataset"]["path"] == "https://example.com/data.jsonl"
    assert [reward["python"] for reward in sent["rewards"][:3]] == [
        reward["python"]
        for reward in named["rewards"][:3]  # type: ignore[index]
    ]
    assert sent["rewards"][3]["model"] == "org/model"
    assert service.paths == ["/v1/jobs"]


def test_what_is_not_there_is_told_before_anything_is_sent(kind: Kind, folder: Path) -> None:
    service = Keeping()
    with pytest.raises(UserError, match=r"there is no .*none.jsonl") as raised:
        submit(kind, service, write(folder, dataset={"path": "none.jsonl"}))
    assert raised.value.param == "dataset.path"
    assert not service.requests


def test_a_mapping_and_a_spec_will_do(
    kind: Kind, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(folder)
    monkeypatch.chdir(folder)
    service = Keeping()
    by_path = submit(kind, service, path)
    by_mapping = submit(kind, service, {"name": "job", **json.loads(Path(path).read_text())})
    assert by_path == by_mapping == submit(kind, service, load_spec(path))


def test_secrets_are_sent_and_masks_are_not(kind: Kind, folder: Path) -> None:
    service = Keeping()
    url = "https://user:secret@example.com/"
    sent = submit(kind, service, write(folder, rewards=[{"http": url}]))
    assert sent["rewards"][0]["http"] == url
    masked = "https://**********@example.com/"
    with pytest.raises(UserError, match="masked"):
        submit(kind, service, write(folder, rewards=[{"http": masked}]))


def test_a_file_is_uploaded_by_itself(kind: Kind, folder: Path) -> None:
    service = Keeping()
    made = outcome(kind, service, lambda client: client.files.upload(str(folder / "data.jsonl")))
    assert (made.purpose, made.filename) == ("dataset", "data.jsonl")
    assert len({r.headers["idempotency-key"] for r in service.requests}) == 1
    with pytest.raises(UserError, match="cannot read"):
        outcome(kind, service, lambda client: client.files.upload(str(folder / "none")))
    (folder / "nothing").mkdir()
    with pytest.raises(UserError, match="nothing in"):
        outcome(kind, service, lambda client: client.files.upload(str(folder / "nothing")))
