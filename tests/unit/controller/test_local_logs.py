"""Which bytes of a log file are whose, and when the file goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.platforms.local_logs import LogFiles, LogSlice, tail


def files_in(folder: Path, *, keep: bool = False) -> LogFiles:
    files = LogFiles(str(folder), keep=keep)
    files.make_folder()
    return files


def text_of(part: LogSlice) -> bytes:
    return Path(part.path).read_bytes()[part.start : part.end]


def write(files: LogFiles, name: str, text: str) -> None:
    with open(files.path(name), "a") as file:
        file.write(text)


def test_slices_follow_each_other(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    first = files.begin("rollout-1")  # before the file is there
    assert first == LogSlice("rollout-1", str(tmp_path / "rollout-1.log"), 0, None)
    assert files.end(first).end == 0
    write(files, "rollout-1", "of the first\n")
    first = files.end(first)
    second = files.begin("rollout-1")
    write(files, "rollout-1", "of the second\n")
    second = files.end(second)
    write(files, "rollout-1", "of the third\n")
    assert (text_of(first), text_of(second)) == (b"of the first\n", b"of the second\n")


@given(st.lists(st.tuples(st.integers(0, 2), st.text("ab\n", max_size=5)), max_size=12))
def test_every_byte_is_in_one_slice(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    files = files_in(folder)
    texts: dict[int, bytes] = {0: b"", 1: b"", 2: b""}
    parts: list[tuple[int, LogSlice]] = []
    for owner, text in written:
        part = files.begin("rollout-1")
        write(files, "rollout-1", text)
        texts[owner] += text.encode()
        parts.append((owner, files.end(part)))
    for owner, text in texts.items():
        assert b"".join(text_of(p) for o, p in parts if o == owner) == text


def test_a_file_goes_when_nobody_refers_to_it(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    first, second = files.begin("rollout-1"), files.begin("rollout-1")
    write(files, "rollout-1", "x")
    files.drop([first])
    assert Path(first.path).exists()
    files.drop([second])
    assert not Path(first.path).exists()
    files.drop([files.begin("rollout-2")])  # it never wrote a line


def test_a_host_without_keeping_clears_its_folder_of_logs_only(tmp_path: Path) -> None:
    for name in ("rollout-1.log", "notes.txt"):
        (tmp_path / name).write_text("x")
    files_in(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_kept_files_stay_and_are_continued(tmp_path: Path) -> None:
    (tmp_path / "rollout-1.log").write_text("earlier\n")
    files = files_in(tmp_path, keep=True)
    part = files.begin("rollout-1")
    assert part.start == 8
    files.drop([part])
    files.clear()
    assert (tmp_path / "rollout-1.log").read_text() == "earlier\n"


def test_the_tail_of_a_slice_has_nothing_of_what_was_before(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    assert tail(str(path), 3) == ""
    path.write_text("secret\none\ntwo\n")
    assert tail(str(path), 3, start=7) == "  one\n  two"
    assert tail(str(path), 2) == "  one\n  two"
    assert tail(str(path), 3, start=15) == ""
