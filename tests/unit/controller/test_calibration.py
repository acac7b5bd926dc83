"""What a run leaves for the simulator."""

from __future__ import annotations

import pytest

from controller.calibration import by_work, calibrate, carrying
from controller.learning import EngineLimits, PolicyState
from controller.timeline import Timeline
from rlhfless.measurements import Measurements
from scaling import cost_model


def _timeline() -> Timeline:
    """Reward calls of 2 ms and 0.1 ms a sample, carried in 3 ms; the first loads for a second."""
    timeline = Timeline()
    for number, samples in enumerate((4, 8, 16, 32, 64) * 8):
        load_s = 1.0 if number == 0 else 0.0
        busy_s = load_s + 2e-3 + 1e-4 * samples
        timeline.add("reward", 10.0, 10.003 + busy_s, busy_s, load_s, work=samples)
    return timeline


def test_scoring_is_by_call_and_sample_without_its_load() -> None:
    found = by_work(_timeline().worked["reward"], (1e-3, 1e-3))
    assert found is not None
    for samples in (4, 16, 64):
        assert found[0] + found[1] * samples == pytest.approx(2e-3 + 1e-4 * samples, rel=0.05)
    assert by_work([], (1e-3, 1e-3)) is None


def test_carrying_leaves_out_calls_that_waited() -> None:
    timeline = _timeline()
    timeline.add("reward", 0.0, 9.0, busy_s=1.0, work=1)  # waited for an instance
    assert carrying(timeline) == {"reward": pytest.approx(3e-3)}


def test_carrying_a_rollout_is_all_that_its_result_does_not_account_for() -> None:
    timeline = Timeline()
    timeline.add("rollout", 0.0, 1.010, busy_s=1.0, load_s=0.5, work=0.495)
    assert carrying(timeline) == {"rollout": pytest.approx(0.015)}


def test_what_was_measured_is_told() -> None:
    calls = [
        cost_model.decode(60, 60 * rows, 60 * rows * 30, 60 * (1e-3 + 1e-5 * rows + 3e-6 * rows))
        for rows in (1, 4, 16, 64)
    ]
    costs = cost_model.observe(
        cost_model.CostState(), calls, [("rollout", 2.0), ("rollout load", 0.5), ("rollout", 4.0)]
    )
    state = PolicyState(engine=EngineLimits(max_batch=64, kv_capacity=4096), costs=costs)
    found = calibrate(
        state,
        _timeline(),
        publish_s=[0.2, 0.1, 0.1],
        controller_s=[0.5, 0.1, 0.1],
        source="a test",
        model="a model",
    )
    assert found.rollout.decode is not None
    iteration_s, row_s, context_s = found.rollout.decode
    assert iteration_s + 8 * row_s + 240 * context_s == pytest.approx(1.104e-3, rel=0.02)
    assert found.rollout.max_batch == 64
    assert found.rollout.kv_capacity_tokens == 4096
    assert found.rollout.kv_token_bytes is None
    assert found.rollout.prefill is None  # never observed
    assert found.cold_start_s == {"rollout": 3.0}
    assert found.load_s == {"rollout": 0.5}
    assert found.step_s == 0.1
    assert found.training.publish_s == 0.1
    assert found.reference is None
    assert (found.source, found.model) == ("a test", "a model")
    assert found.machine
    assert found.date


def test_nothing_measured_is_nothing_known() -> None:
    found = calibrate(PolicyState(), Timeline(), publish_s=[], controller_s=[], source="", model="")
    blank = found.model_copy(update={"machine": "", "date": ""})
    assert blank == Measurements()
