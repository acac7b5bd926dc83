"""Fixtures of end-to-end runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# A shell lets what it starts in the background ignore Ctrl-C, and that is inherited: the commands
# of a test would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest.register_assert_rewrite("tests.support.runs")

from tests.support.ray_platforms import SharedRay, sharing  # noqa: E402  (after the lines above)
from tests.support.runs import Result, Workplace  # noqa: E402


@pytest.fixture
def place(tmp_path: Path, tiny_model_dir: Path) -> Iterator[Workplace]:
    """A folder with a very small job; whatever a test starts in it is ended after the test."""
    with Workplace(tmp_path, tiny_model_dir) as workplace:
        yield workplace


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Result:
    """What the job of ``place`` gives when nothing happens to it."""
    with Workplace(tmp_path_factory.mktemp("undisturbed"), tiny_model_dir) as workplace:
        ended = workplace.start_job().ended()
        assert ended.code == 0, ended.explained()
        workplace.assert_nothing_left()
        return workplace.result()


@pytest.fixture(scope="session")
def shared_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedRay]:
    """Ray, started once: that takes ten seconds."""
    with sharing(tmp_path_factory.mktemp("ray")) as started:
        yield started
