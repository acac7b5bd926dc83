"""What a job names becomes paths, on the real object store, files and library of a service."""

import asyncio
import hashlib
import io
import json
import os
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.service import hub
from controller.service import inputs as module
from controller.service.draft import Draft
from rlhfless.checkpoints import Checkpoint, CheckpointFile, checkpoint_prefix, commit_checkpoint
from rlhfless.errors import NotFoundError, TransientError, UserError
from rlhfless.rest import Purpose
from rlhfless.spec import JobSpec
from tests.support.api import Api, with_api

ROWS = b'{"prompt": "a"}\n' * 3
MODEL = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's own Hub cache, and no download."""

    async def download(what: str, name: str, *_: Any) -> None:
        raise AssertionError(f"{what} {name} was to be downloaded")

    monkeypatch.setattr(hub, "cached_model", lambda _: None)
    monkeypatch.setattr(hub, "download", download)


def tar(files: dict[str, bytes], under: str = "") -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(under + name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return whole.getvalue()


async def upload(
    api: Api, name: str, content: bytes, purpose: Purpose = "dataset", tenant: str = "acme"
) -> str:
    with Draft(api.settings.file("uploads"), 10**9) as draft:
        draft.write(content)
        return (await api.parts.files.add(tenant, draft, purpose, name)).id


def spec(**changes: Any) -> JobSpec:
    whole = {
        "model": {"path": "library:model"},
        "dataset": {"path": "library:rows.jsonl"},
        "rewards": [{"http": "https://reward.example/x"}],
    }
    return JobSpec.model_validate(whole | changes)


@asynccontextmanager
async def local(
    api: Api, changes: dict[str, Any], tenant: str = "acme", job: str | None = None
) -> AsyncIterator[JobSpec]:
    async with api.parts.inputs.materialised(spec(**changes), tenant, job) as found:
        yield found


@pytest.fixture
def library(tmp_path: Path) -> str:
    folder = tmp_path / "library"
    (folder / "model").mkdir(parents=True)
    for name, content in MODEL.items():
        (folder / "model" / name).write_bytes(content)
    (folder / "rows.jsonl").write_bytes(ROWS)
    (folder / "rewards.py").write_text("def f(): ...")
    return str(folder)


def entries(tmp_path: Path) -> list[str]:
    """What the cache of inputs holds, locks and parts left out."""
    folder = tmp_path / "replica" / "inputs"
    names = os.listdir(folder) if folder.exists() else []
    assert not [name for name in names if ".part-" in name]
    return sorted(name for name in names if not name.endswith(".lock"))


def test_the_library_is_read_where_it_lies(tmp_path: Path, library: str) -> None:
    async def test(api: Api) -> None:
        rewards = [{"python": "library:rewards.py:f"}, {"model": "library:model"}]
        async with local(api, {"rewards": rewards}) as found:
            assert found.model.path == f"{library}/model"
            assert found.dataset.path == f"{library}/rows.jsonl"
            assert found.rewards[0].python == f"{library}/rewards.py:f"
            assert found.rewards[1].model == f"{library}/model"
            assert [reward.name for reward in found.rewards] == ["f", "library:model"]
        assert entries(tmp_path) == []

    with_api(tmp_path, test, library=library)


def test_files_become_files_of_their_kind(tmp_path: Path, library: str) -> None:
    async def test(api: Api) -> None:
        rows = await upload(api, "My Rows.JSONL", ROWS)
        odd = await upload(api, "rows", ROWS)
        code = await upload(api, "scores.py", b"def f(): ...", "reward")
        strange = await upload(api, "my scores.py", b"def g(): ...", "reward")
        changes = {
            "dataset": {"path": rows},
            "evaluation": {"dataset": {"path": odd, "format": "jsonl"}},
            "rewards": [{"python": f"{code}:f", "weight": 2.0}, {"python": f"{strange}:g"}],
        }
        async with local(api, changes) as found:
            assert found.dataset.path.endswith("/data.jsonl")
            assert found.evaluation is not None
            assert found.evaluation.dataset.path.endswith("/data")
            assert read(found.dataset.path) == read(found.evaluation.dataset.path) == ROWS
            paths = [str(reward.python) for reward in found.rewards]
            assert paths[0].endswith("/scores.py:f")
            assert paths[1].endswith("/reward.py:g")
            assert read(paths[0].removesuffix(":f")) == b"def f(): ..."
            assert found.rewards[0].weight == 2.0
        assert len(entries(tmp_path)) == 4

    with_api(tmp_path, test, library=library)


def there(path: str) -> bool:
    return os.path.isfile(path)


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def test_tars_become_models_datasets_and_folders_of_code(tmp_path: Path, library: str) -> None:
    async def test(api: Api) -> None:
        model = await upload(api, "m.tar.gz", tar(MODEL, "my-model/"), "model")
        rows = {"state.json": b"{}", "dataset_info.json": b"{}", "data.arrow": b"x"}
        data = await upload(api, "d.tgz", tar(rows))
        code = {"rewards.py": b"import helper", "helper.py": b"", "sub/other.py": b""}
        flat = await upload(api, "r.tar", tar(code), "reward")
        deep = await upload(api, "r.tar", tar(code, "code/"), "reward")
        changes = {
            "model": {"path": model},
            "dataset": {"path": data},
            "rewards": [
                {"python": f"{flat}/rewards.py:f"},
                {"python": f"{deep}/rewards.py:f", "name": "g"},
                {"python": f"{deep}/sub/other.py:h"},
                {"model": model},
            ],
        }
        async with local(api, changes) as found:
            assert sorted(os.listdir(found.model.path)) == sorted(MODEL)
            assert there(f"{found.dataset.path}/state.json")
            for reward in found.rewards[:2]:
                folder = os.path.dirname(str(reward.python))
                assert there(f"{folder}/helper.py")
            assert str(found.rewards[2].python).endswith("/sub/other.py:h")
            assert found.rewards[3].model == found.model.path
            assert found.rewards[3].name == model  # a name that says nothing of where it lies
            assert [reward.name for reward in found.rewards[:3]] == ["f", "g", "h"]

    with_api(tmp_path, test, library=library)


def test_a_checkpoint_of_the_tenants_job(tmp_path: Path, library: str) -> None:
    async def test(api: Api) -> None:
        job = await api.parts.registry.create("acme", {"name": "before"})
        prefix = checkpoint_prefix(job.id, 20)
        files = []
        for name, content in MODEL.items():
            api.parts.objects.put(f"{prefix}/{name}", content)
            digest = hashlib.sha256(content).hexdigest()
            files.append(CheckpointFile(name=name, size=len(content), sha256=digest))
        model = {"model": {"path": f"checkpoint:{job.id}/20"}}
        with pytest.raises(NotFoundError) as refused:  # not before its manifest is there
            async with local(api, model):
                raise AssertionError
        assert refused.value.param == "model.path"
        told = Checkpoint(step=20, version=20, created_at=1.0, files=files)
        assert commit_checkpoint(api.parts.objects, prefix, told)
        async with local(api, model) as found:
            assert read(f"{found.model.path}/model.safetensors") == b"weights"
        with pytest.raises(NotFoundError):
            async with local(api, model, "rival"):
                raise AssertionError
        api.parts.objects.put(f"{prefix}/model.safetensors", b"damaged")
        for folder in entries(tmp_path):
            os.rename(tmp_path / "replica" / "inputs" / folder, tmp_path / "away")
        with pytest.raises(TransientError):
            async with local(api, model):
                raise AssertionError
        assert entries(tmp_path) == []

    with_api(tmp_path, test, library=library)


@pytest.mark.parametrize(
    ("change", "why", "kind"),
    [
        ({"dataset": {"path": "{gone}"}}, "no file", NotFoundError),
        ({"dataset": {"path": "{theirs}"}}, "no file", NotFoundError),
        ({"dataset": {"path": "{lost}"}}, "no longer there", NotFoundError),
        ({"dataset": {"path": "{empty}"}}, "no dataset", UserError),
        ({"model": {"path": "{model}"}}, "no config.json", UserError),
        ({"model": {"path": "{bomb}"}}, "holds more than", UserError),
        ({"model": {"path": "{link}"}}, "neither a file nor a folder", UserError),
        ({"rewards": [{"python": "{code}/absent.py:f"}]}, "holds no absent.py", UserError),
        ({"model": {"path": "library:absent"}}, "the library has no", NotFoundError),
    ],
)
def test_what_is_not_as_it_should_be_is_refused_and_leaves_nothing(
    tmp_path: Path, library: str, change: dict[str, Any], why: str, kind: type[UserError]
) -> None:
    async def test(api: Api) -> None:
        names = {
            "gone": "file-" + "0" * 24,
            "theirs": await upload(api, "a.jsonl", ROWS, tenant="rival"),
            "lost": await upload(api, "a.jsonl", b"lost"),
            "empty": await upload(api, "a.tar", tar({"x": b""})),
            "model": await upload(api, "a.tar", tar({"x/y/config.json": b"{}"}), "model"),
            "bomb": await upload(api, "b.tar", tar({"x": b"\0" * 10**6}), "model"),
            "link": await upload(api, "c.tar", with_link(), "model"),
            "code": await upload(api, "a.tar", tar({"x.py": b""}), "reward"),
        }
        api.parts.objects.delete(f"files/acme/{names['lost']}")
        whole = json.dumps(change)
        for name, id_ in names.items():
            whole = whole.replace(f"{{{name}}}", id_)
        with pytest.raises(kind, match=why) as refused:
            async with local(api, json.loads(whole)):
                raise AssertionError
        assert refused.value.param in ("dataset.path", "model.path", "rewards.0.python")
        assert str(tmp_path) not in refused.value.detail
        entries(tmp_path)

    with_api(tmp_path, test, library=library, max_unpacked_bytes=10**5)


def with_link() -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        info = tarfile.TarInfo("config.json")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    return whole.getvalue()


def test_two_replicas_make_an_input_once(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[str] = []
    inner: Callable[..., None] = module.unpack

    def counted(path: str, folder: str, **options: Any) -> None:
        unpacked.append(folder)
        inner(path, folder, **options)

    monkeypatch.setattr(module, "unpack", counted)

    async def test(api: Api) -> None:
        other = Api(tmp_path, library=library)
        model = await upload(api, "m.tar", tar(MODEL), "model")
        changes = {"model": {"path": model}}
        other.parts.inputs._files = api.parts.files

        async def use(each: Api) -> str:
            async with local(each, changes) as found:
                assert there(f"{found.model.path}/config.json")
                return found.model.path

        paths = await asyncio.gather(*(use(each) for each in (api, other) * 4))
        assert len(set(paths)) == len(unpacked) == 1
        await other.redis.aclose()

    with_api(tmp_path, test, library=library)


def test_what_a_url_held_first_is_what_the_job_goes_on_with(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    async def fetch(url: str, write: Callable[[bytes], None], **options: Any) -> None:
        fetched.append(url)
        assert options["allowed"] == ("http://x/",)
        write(ROWS * len(fetched))

    monkeypatch.setattr(module, "fetch", fetch)
    changes = {"dataset": {"path": "https://data.example/rows.jsonl?token=1"}}

    async def test(api: Api) -> None:
        job = (await api.parts.registry.create("acme", {"name": "j"})).id
        for _ in range(3):
            async with local(api, changes, job=job) as found:
                assert read(found.dataset.path) == ROWS
        assert len(fetched) == 1
        file = (await api.parts.files.listed("acme")).data[0]
        assert (file.filename, file.num_bytes) == ("rows.jsonl", len(ROWS))
        with pytest.raises(UserError, match=job):
            await api.parts.files.delete("acme", file.id)
        async with local(api, changes) as found:
            assert read(found.dataset.path) == ROWS * 2

    with_api(tmp_path, test, library=library, allowed_urls=("http://x/",))


def test_the_hub_is_asked_by_name_and_never_taken_for_a_path(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "org" / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)

    async def download(what: str, name: str, folder: str, max_bytes: int, param: str) -> None:
        asked.append((what, name))
        assert max_bytes == 77
        inside = Path(folder, "data") if what == "dataset" else Path(folder)
        fill(inside)

    monkeypatch.setattr(hub, "download", download)
    changes = {"model": {"path": "org/model"}, "dataset": {"path": "org/data"}}

    async def test(api: Api) -> None:
        unloaded = api.parts.inputs.materialised(spec(**changes), "acme", download=False)
        async with unloaded as found:
            assert (found.model.path, found.dataset.path) == ("org/model", "org/data")
        assert asked == []
        for _ in range(2):
            async with local(api, changes) as found:
                for path in (found.model.path, found.dataset.path):
                    assert path.startswith(api.settings.file("inputs"))
                    assert there(f"{path}/config.json")
        assert sorted(asked) == [("dataset", "org/data"), ("model", "org/model")]
        monkeypatch.setattr(hub, "cached_model", lambda _: f"{library}/model")
        async with local(api, changes) as found:
            assert found.model.path == f"{library}/model"

    with_api(tmp_path, test, library=library, max_hub_bytes=77)


def fill(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in MODEL.items():
        (folder / name).write_bytes(content)


def test_texts_are_shown_without_our_paths(tmp_path: Path, library: str) -> None:
    async def test(api: Api) -> None:
        inputs = api.settings.file("inputs")
        trace = (
            f'File "{inputs}/abc-tar/content/sub/r.py", line 3, in f\n'
            f'File "/venv/lib/numpy/core.py", line 1, in g\n'
            f"see http://a/b/c and {library}/rewards.py"
        )
        assert api.parts.inputs.shown(trace) == (
            'File "sub/r.py", line 3, in f\n'
            'File ".../core.py", line 1, in g\n'
            "see http://a/b/c and library:rewards.py"
        )

    with_api(tmp_path, test, library=library)
