"""The disk of a run is full in each phase: a clear end, and with some room the run goes on."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runs import Result, Workplace, assert_same

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # many runs a test


@pytest.fixture
def disk(place: Workplace) -> Iterator[Path]:
    """A small disk of its own in the workplace."""
    folder = place.folder / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs privileges")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Use up all room, to the last block."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return filler


def test_a_full_disk_ends_the_run_clearly_and_room_lets_it_go_on(
    place: Workplace, undisturbed: Result, disk: Path
) -> None:
    for number, (phase, call, point) in enumerate(
        [
            ("evaluation", "step-000000/rollout/eval-*", "Tokens"),
            ("rollout", "step-000000/rollout/actor-*", "Tokens"),
            ("training", "step-000001/training/train", "begin"),
            ("journal", "step-000001/controller/commit", "begin"),
            ("export", "step-000003/training/export-*", "begin"),
        ]
    ):
        place.gate(phase, call, after=point)
        running = place.start_job("disk/run", *["--resume"] * (number > 0), gated=True)
        place.reached(phase, running)
        filler = fill(disk)
        place.open(phase)
        ended = running.ended()
        filler.unlink()
        assert ended.code == 3, ended.explained()
        assert "o space left" in ended.err
        assert "Traceback" not in ended.err
        assert "continue with: rlhfless run job.yaml --out disk/run --resume" in ended.out
        place.assert_nothing_left()
    ended = place.start_job("disk/run", "--resume", gated=True).ended()
    assert ended.code == 0, ended.explained()
    assert_same(place.result("disk/run"), undisturbed)


def test_a_disk_that_may_only_be_read_is_told_at_once(place: Workplace, disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    ended = place.start_job("disk/run").ended()
    assert ended.code == 2, ended.explained()
    assert f"error: cannot write to {disk}/run: Read-only file system" in ended.err
    place.assert_nothing_left()


def test_a_disk_without_any_room_is_told_at_once(place: Workplace, disk: Path) -> None:
    filler = fill(disk)
    ended = place.start_job("disk/run").ended()
    assert ended.code == 3, ended.explained()
    assert "error: cannot write" in ended.err
    assert "No space left on device" in ended.err
    filler.unlink()
    ended = place.start("run", "job.yaml", "--out", "disk/run", "--set", "training.steps=1").ended()
    assert ended.code == 0, ended.explained()
