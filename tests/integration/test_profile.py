"""``rlhfless profile`` on real functions."""

from __future__ import annotations

import pytest

from rlhfless.measurements import load_measurements
from tests.support.runs import Workplace

pytestmark = pytest.mark.slow


def test_everything_a_job_uses_is_measured(place: Workplace) -> None:
    place.change_job(rollout={"max_tokens": 24, "max_instances": 1}, training={"overlap": True})
    ended = place.run("profile", "job.yaml", "--out", "m.json", "--rounds", "2")
    assert ended.code == 0, ended.explained()
    found = load_measurements(str(place.folder / "m.json"))
    rollout, training = found.rollout, found.training
    for costs in (
        rollout.decode,
        rollout.prefill,
        rollout.weights_pull,
        rollout.kv_load,
        rollout.kv_publish,
        training.update,
        training.gradients,
        found.reward,
        found.reference,
    ):
        assert costs is not None
        assert sum(costs) > 0
    functions = {"rollout", "reward", "reference", "training"}
    assert set(found.cold_start_s) == set(found.call_s) == functions
    assert set(found.load_s) == {"rollout", "reward", "reference"}
    assert training.publish_s is not None
    assert training.weights_bytes is not None
    assert rollout.kv_capacity_tokens is not None
    assert found.model == str(place.model)
    assert "written to m.json" in ended.out
    place.assert_nothing_left()


def test_a_file_that_cannot_be_written_is_told_first(place: Workplace) -> None:
    ended = place.run("profile", "job.yaml", "--out", "none/m.json")
    assert ended.code == 2
    assert "cannot write none/m.json" in ended.err
    place.assert_nothing_left()
