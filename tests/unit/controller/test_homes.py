"""No room for what a run needs beside its folder is told in words, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from controller.homes import open_home
from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.local import LocalPlatform
from controller.redis_server import open_redis
from rlhfless.errors import CapacityError, UserError


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of the test's own, with a short enough path."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_a_temporary_folder_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    with pytest.raises(UserError, match=r"cannot make a temporary folder /proc/nowhere") as told:
        open_home()
    assert "TMPDIR" in str(told.value.hint)


def test_no_usable_temporary_folder_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/nowhere"])
    with pytest.raises(CapacityError, match="No usable temporary directory found") as told:
        open_home()
    assert "TMPDIR" in str(told.value.hint)


def test_a_home_that_cannot_have_its_guardian_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    def no_process(*_: object, **__: object) -> NoReturn:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    handles = set(os.listdir("/proc/self/fd"))
    with pytest.raises(CapacityError, match="Resource temporarily unavailable"):
        open_home()
    assert set(os.listdir("/proc/self/fd")) == handles
    assert list(temporary.iterdir()) == []


def test_a_home_that_cannot_be_furnished_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    def no_room(*_: object, **__: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fcntl, "flock", no_room)
    handles = set(os.listdir("/proc/self/fd"))
    with pytest.raises(CapacityError, match="No space left on device"):
        open_home()
    assert set(os.listdir("/proc/self/fd")) == handles
    assert list(temporary.iterdir()) == []


def test_logs_that_cannot_be_a_folder(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.write_text("not a folder")

    async def main() -> None:
        deployments = [Deployment("rollout")]
        async with LocalPlatform(deployments, ledger=Ledger(), folder=str(logs)):
            pass

    with pytest.raises(UserError, match=f"cannot write to {logs}: File exists"):
        asyncio.run(main())


def test_a_job_store_that_cannot_be_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    folder.write_text("not a folder")

    async def main() -> None:
        async with open_redis(str(folder)):
            pass

    with pytest.raises(UserError, match=f"cannot write to the folder {folder}: File exists"):
        asyncio.run(main())
