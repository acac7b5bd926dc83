"""The file that says how functions look in a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.platforms.knative_settings import FILE_VARIABLE, duration_s, load_settings
from rlhfless.errors import UserError
from tests.support.knative_platforms import settings


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = settings(spot=1, timeoutSeconds=900)
    file = tmp_path / "platform.yaml"
    file.write_text(told.model_dump_json(by_alias=True))
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    assert load_settings() == load_settings(str(file)) == told


def test_no_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    with pytest.raises(UserError, match="needs the file"):
        load_settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "cannot read"),
        ("namespace: a\nrelease: b\nfunctions: {}\nreplicas: 3", "replicas"),
        ("namespace: a\nrelease: B C\nfunctions: {}", "release"),
        ("namespace: a\nrelease: b\nfunctions: {}\nknative: {progressDeadline: soon}", "soon"),
        ("platform: ray\nnamespace: a\nrelease: b\nfunctions: {}", "platform"),
        ("namespace: a\nrelease: b\nfunctions: {rollout: {pools: []}}", "functions.rollout.pools"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "platform.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=said):
        load_settings(str(file))
    with pytest.raises(UserError, match="cannot read"):
        load_settings(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("0s", 0), ("30m", 1800), ("1h", 3600), ("1h2m3s", 3723)]
)
def test_durations(text: str, seconds: int) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "s", "1.5h", "3s2m", "-1s", "1d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        duration_s(text)
