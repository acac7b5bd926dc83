"""The home of a controller's processes. That it ends them is tested with real platforms; here: that
it ends nobody else, and what its folder is like."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhfless import lifeline
from rlhfless.lifeline import Home


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process group that is none of ours."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder that no other test sweeps, with a short enough path."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_the_folder_is_private_and_goes_with_the_home(temporary: Path) -> None:
    home = Home()
    assert Path(home.path).parent == temporary
    assert os.stat(home.path).st_mode & 0o777 == 0o700
    home.close()
    home.close()
    assert list(temporary.iterdir()) == []


def test_a_folder_of_a_process_without_a_home_goes_after_it(temporary: Path) -> None:
    told = "import sys; from rlhfless import lifeline; print(lifeline.own_folder(), flush=True)"
    program = [sys.executable, "-c", f"{told}; sys.stdin.read()"]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().decode().strip())
        (theirs / "work").mkdir()
        lifeline.sweep()
        assert (theirs / "work").is_dir()
        process.kill()
    lifeline.sweep()
    assert list(temporary.iterdir()) == []


def test_a_long_temporary_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    home = Home()
    try:
        assert len(home.file("rollout-123456.sock")) < 104  # the least any system allows
    finally:
        home.close()


def test_a_wrapped_command_joins_before_it_runs(temporary: Path) -> None:
    home = Home()
    command = home.exec_command(["/bin/sleep", "600"])
    with subprocess.Popen(command) as process:
        note = Path(home.path, "pids", str(process.pid))
        while not (note.exists() and note.read_text().endswith("TERM")):
            assert process.poll() is None
        assert os.getpgid(process.pid) == process.pid
        home.close()
        assert process.wait(10) in (-signal.SIGTERM, -signal.SIGKILL)


def test_a_pid_that_another_process_has_by_now_is_left_alone(
    temporary: Path, stranger: subprocess.Popen[bytes]
) -> None:
    home = Home()
    Path(home.path, "pids", str(stranger.pid)).write_text("1 KILL")  # started at another time
    home.close()
    assert stranger.poll() is None


def test_what_is_forgotten_is_left_alone(
    temporary: Path, stranger: subprocess.Popen[bytes]
) -> None:
    home = Home()
    started = lifeline._started_at(stranger.pid)
    Path(home.path, "pids", str(stranger.pid)).write_text(f"{started} KILL")
    home.forget(stranger.pid)
    home.forget(stranger.pid)
    home.close()
    assert stranger.poll() is None


def test_notes_that_make_no_sense_do_no_harm(
    temporary: Path, stranger: subprocess.Popen[bytes]
) -> None:
    home = Home()
    for name, text in (("1", "9 KILL"), ("nonsense", "x"), ("0", " KILL"), ("-1", " KILL")):
        Path(home.path, "pids", name).write_text(text)
    home.close()
    assert stranger.poll() is None
    assert list(temporary.iterdir()) == []


def test_a_sweep_takes_what_is_left_and_nothing_else(temporary: Path) -> None:
    other = temporary / "rlhfless-notes.txt"
    other.write_text("mine")
    (temporary / f"rlhfless-{os.getuid()}-not-a-home").mkdir()
    program = (
        "import os, rlhfless.lifeline as l; h = l.Home(); print(h.path); print(h._guardian.pid)"
    )
    code = f"import tempfile; tempfile.tempdir = {str(temporary)!r}; {program}; " + (
        "import sys; sys.stdout.flush(); h._guardian.kill(); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    left = done.stdout.split()[0]
    living = Home()
    assert not os.path.exists(left)
    lifeline.sweep()
    assert os.path.exists(living.path)
    living.close()
    assert {p.name for p in temporary.iterdir()} == {
        "rlhfless-notes.txt",
        f"rlhfless-{os.getuid()}-not-a-home",
    }
