"""Real event files, written by the tracker's own process and read back."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("tensorboardX")

from controller.integrations.tensorboard import logged_in, read_events
from controller.integrations.tracker import Logged
from tests.support.trackers import Told, evaluated, job_spec, kill_children, restored, step, until


def scalars(folder: Path) -> list[tuple[int, str, float]]:
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in read_events(str(path)):
            found += [
                (event.step, value.tag, round(value.simple_value, 4))
                for value in event.summary.value
            ]
    return sorted(found)


def means(folder: Path) -> list[int]:
    return [number for number, tag, _ in scalars(folder) if tag == "reward/mean"]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(job_spec({"type": "tensorboard"}), tmp_path)


def test_steps_and_evaluations_are_there(told: Told, tmp_path: Path) -> None:
    told.run(evaluated(0), step(1), step(2), evaluated(2))
    assert scalars(tmp_path / "tensorboard") == [
        (0, "eval/accuracy", 0.0),
        (0, "eval/length_mean", 7.0),
        (0, "eval/reward_mean", 0.5),
        (1, "reward/h:8000+x", 1.0),
        (1, "reward/mean", 0.1),
        (2, "eval/accuracy", 0.02),
        (2, "eval/length_mean", 7.0),
        (2, "eval/reward_mean", 0.5),
        (2, "reward/h:8000+x", 1.0),
        (2, "reward/mean", 0.2),
    ]
    assert told.warnings == []


def test_a_resumed_job_logs_no_step_twice_and_none_is_missing(told: Told, tmp_path: Path) -> None:
    told.run(evaluated(0), step(1), step(2), ends="interrupted")
    told.run(restored(1), restored(2), restored(3), evaluated(0), evaluated(3), step(4))
    assert means(tmp_path / "tensorboard") == [1, 2, 3, 4]
    assert logged_in(str(tmp_path / "tensorboard")) == Logged(4, 3)


def test_a_torn_record_ends_a_file_and_is_logged_again(told: Told, tmp_path: Path) -> None:
    told.run(step(1), step(2))
    (path,) = (tmp_path / "tensorboard").iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    told.run(restored(1), restored(2), step(3))
    assert means(tmp_path / "tensorboard") == [1, 2, 3]


def test_a_killed_process_is_started_again(told: Told, tmp_path: Path) -> None:
    async def play() -> None:
        async with told.tracking() as trackers:
            trackers.observe(step(1))
            await until(lambda: means(tmp_path / "tensorboard") == [1])
            assert kill_children()
            trackers.observe(step(2))
            trackers.observe(step(3))
            await until(lambda: means(tmp_path / "tensorboard") == [1, 2, 3])

    asyncio.run(play())
    assert told.warnings == ["tensorboard: its process has ended; the job goes on"]


def test_two_of_a_kind_have_folders_of_their_own(tmp_path: Path) -> None:
    told = Told(job_spec({"type": "tensorboard"}, {"type": "tensorboard"}), tmp_path)
    told.run(step(1))
    assert means(tmp_path / "tensorboard") == means(tmp_path / "tensorboard-2") == [1]
