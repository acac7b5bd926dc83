"""The benchmark of many accelerators counts what it says it counts."""

from __future__ import annotations

import pytest

from benchmarks.large import job
from benchmarks.large.job import Mark, Size
from controller import generate, planning, step


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it changes in its own process."""
    monkeypatch.setattr(planning, "plan_rollout", planning.plan_rollout)
    monkeypatch.setattr(generate, "FRAMES_PER_S", 4)
    monkeypatch.setattr(step, "KEEP_S", 1e-3)
    monkeypatch.setattr(job, "collect_rarely", lambda: None)


def test_few_frames_and_many_tell_of_the_same_tokens() -> None:
    size = Size(actors=4, samples=32, steps=2)
    few, many = job.run(size), job.run(size, each=True)
    assert len(few) == len(many) == 1 + size.steps
    for one, other in zip(few, many, strict=True):
        assert one.record is other.record is None or (
            one.record.metrics["response_length/mean"]
            == other.record.metrics["response_length/mean"]
        )
    assert few[-1].counted.frames["Tokens"] < many[-1].counted.frames["Tokens"] / 2
    assert few[-1].counted.writes["samples"] < many[-1].counted.writes["samples"]
    assert few[-1].counted.stored == many[-1].counted.stored


def test_the_platform_is_booked_apart() -> None:
    marks: list[Mark] = job.run(Size(actors=2, samples=16, steps=2))
    first, last = marks[0], marks[-1]
    assert 0 < last.platform_s - first.platform_s < last.cpu_s - first.cpu_s
    assert last.counted.frames["RolloutDone"] == last.counted.calls["rollout"]
    assert last.counted.frames["TrainDone"] == last.counted.calls["train"] == 2
    assert last.counted.bytes_in["rollout"] > 5 * sum(
        mark.record.metrics["response_length/mean"] * 16 for mark in marks[1:]
    )
