import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.service import unpack as unpacking
from controller.service.model_folder import find_root, model_root
from controller.service.unpack import unpack
from rlhfless.errors import UserError


def member(name: str, data: bytes = b"x", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> str:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return str(path)


def unpacked(
    path: str, into: Path, max_bytes: int = 1000, stopped: Callable[[], bool] = lambda: False
) -> list[str]:
    unpack(path, str(into), param="model.path", max_bytes=max_bytes, stopped=stopped)
    return sorted(str(p.relative_to(into)) for p in into.rglob("*") if p.is_file())


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_files_and_folders_come_out(tmp_path: Path, mode: str) -> None:
    folder = member("m/sub", b"", type=tarfile.DIRTYPE)
    setuid = member("m/sub/run", b"code", mode=0o4777, uid=0)
    path = tar(tmp_path / "t", folder, setuid, member("m/a" + "b" * 150, b"y" * 900), mode=mode)
    out = tmp_path / "out"
    assert unpacked(path, out) == ["m/a" + "b" * 150, "m/sub/run"]
    assert os.stat(out / "m/sub/run").st_mode & 0o7777 == 0o644


@pytest.mark.parametrize(
    "bad",
    [
        member("/etc/x"),
        member("../x"),
        member("a/../../x"),
        member("a/" * 20 + "x"),
        member("link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("link", b"", type=tarfile.SYMTYPE, linkname="a"),
        member("link", b"", type=tarfile.LNKTYPE, linkname="../x"),
        member("device", b"", type=tarfile.CHRTYPE),
        member("pipe", b"", type=tarfile.FIFOTYPE),
        member("large", b"x" * 1001),
    ],
    ids=lambda each: f"{each[0].type!r} {each[0].name[:10]}",
)
def test_what_does_not_belong_in_a_tar_is_refused(
    tmp_path: Path, bad: tuple[tarfile.TarInfo, bytes]
) -> None:
    path = tar(tmp_path / "t", member("a"), bad)
    with pytest.raises(UserError) as refused:
        unpacked(path, tmp_path / "out")
    assert refused.value.param == "model.path"
    assert sorted(os.listdir(tmp_path)) == ["out", "t"]
    assert set(os.listdir(tmp_path / "out")) <= {"a"}


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = tar(tmp_path / "zeros", member("z", b"\0" * 5_000_000), mode="w:gz")
    assert os.path.getsize(zeros) < 10_000
    with pytest.raises(UserError, match="more than 1,000 bytes"):
        unpacked(zeros, tmp_path / "a")
    many = tar(tmp_path / "many", *(member(f"{i}", b"") for i in range(20)), mode="w:gz")
    monkeypatch.setattr(unpacking, "MAX_MEMBERS", 10)
    with pytest.raises(UserError, match="more than 10 files"):
        unpacked(many, tmp_path / "b")
    assert len(os.listdir(tmp_path / "b")) == 10
    # An extended header is read whole before anybody sees a member.
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 50_000_000
    with gzip.open(tmp_path / "header", "wb") as file:
        file.write(header.tobuf() + b"\0" * header.size)
    with pytest.raises(UserError, match="too large"):
        unpacked(str(tmp_path / "header"), tmp_path / "c")


@pytest.mark.parametrize(
    "content",
    [b"", b"no tar", b"\x1f\x8bno gzip", gzip.compress(b"no tar", mtime=0), b"PK\x03\x04zip"],
)
def test_what_is_no_tar_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(UserError):
        unpacked(str(tmp_path / "t"), tmp_path / "out")


@pytest.mark.parametrize(("mode", "length"), [("w", 1000), ("w:gz", 60)])
def test_a_tar_that_is_cut_off_is_refused(tmp_path: Path, mode: str, length: int) -> None:
    path = tar(tmp_path / "t", member("a", os.urandom(900)), mode=mode)
    os.truncate(path, length)
    with pytest.raises(UserError):
        unpacked(path, tmp_path / "out")


def test_it_ends_when_it_is_stopped(tmp_path: Path) -> None:
    path = tar(tmp_path / "t", member("a"), member("b"))
    answers = iter([False, True])
    assert unpacked(path, tmp_path / "out", stopped=lambda: next(answers)) == ["a"]


def model(folder: Path, **files: object) -> str:
    folder.mkdir()
    for name, content in {"config.json": {}, "model.safetensors": {}, **files}.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return str(folder)


def test_a_model_is_found_with_or_without_a_folder_around_it(tmp_path: Path) -> None:
    path = model(tmp_path / "m")
    assert model_root(path, "p") == path
    assert model_root(str(tmp_path), "p") == path
    (tmp_path / "other").mkdir()
    assert find_root(str(tmp_path), "config.json") is None


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"config.json": None}, "no config.json"),
        ({"model.safetensors": None, "pytorch_model.bin": {}}, "no safetensors"),
        # Loaders look for this name alone: without it they would take the pickle.
        ({"model.safetensors": None, "x.safetensors": {}, "pytorch_model.bin": {}}, "no safetens"),
        ({"adapter_config.json": {"base_model_name_or_path": "/other"}}, "adapter"),
        ({"model.safetensors.index.json": {"weight_map": {"w": "../../x.safetensors"}}}, "names"),
        ({"model.safetensors.index.json": {"weight_map": {"w": "/x.safetensors"}}}, "names"),
        ({"model.safetensors.index.json": {"weight_map": {"w": "absent"}}}, "names"),
        ({"model.safetensors.index.json": []}, "no JSON object"),
    ],
)
def test_a_model_that_reads_elsewhere_is_refused(
    tmp_path: Path, files: dict[str, object], why: str
) -> None:
    with pytest.raises(UserError, match=why) as refused:
        model_root(model(tmp_path / "m", **files), "model.path")
    assert refused.value.param == "model.path"


def test_shards_beside_their_index_are_taken(tmp_path: Path) -> None:
    shards = {"a.safetensors": {}, "model.safetensors": None}
    index = {"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}}
    path = model(tmp_path / "m", **{"model.safetensors.index.json": index, **shards})
    assert model_root(path, "p") == path
