"""Which calls a profile makes, and how well their costs are told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.profile.fits import fits
from controller.profile.grid import RolloutPoint, parts, rollout_grid
from controller.timeline import Timeline
from rlhfless.measurements import Measurements, RolloutMeasured
from rlhfless.spec import JobSpec
from scaling import cost_model


def _spec(**sections: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "model": {"path": "/m"},
            "dataset": {"path": "/d.jsonl"},
            "rewards": [{"python": "/r.py:f"}],
            "training": {"steps": 1, "prompts_per_step": 32},
            "algorithm": {"name": "grpo", "group_size": 8},
        }
        | sections
    )


@given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 40))
def test_rows_of_a_point_end_one_after_the_other(rows: int, group: int, new: int) -> None:
    point = RolloutPoint(rows, group, 10, new)
    limits = [point.limit(row) for row in range(rows)]
    assert limits == sorted(limits)
    assert min(limits) >= 1
    assert max(limits) == new
    assert (rows - 1) // group < point.prompts


@pytest.mark.parametrize("max_tokens", [1, 16, 2048])
@pytest.mark.parametrize("max_batch", [0, 1, 24])
def test_the_grid_keeps_the_job_bounds(max_tokens: int, max_batch: int) -> None:
    spec = _spec(rollout={"max_tokens": max_tokens, "max_batch": max_batch})
    grid = rollout_grid(spec, prompt_tokens=20, longest=50)
    assert max(point.rows for point in grid) == (max_batch or 256)
    for point in grid:
        assert point.prompt_tokens + point.new_tokens <= 50 + max_tokens
        assert point.new_tokens <= max_tokens
        assert point.usual == (point.prompt_tokens == 20)
    far = [point.rows for point in grid if not point.usual]
    assert bool(far) == (50 + max_tokens - min(max_tokens, 32) >= 40)
    assert all(rows <= 16 for rows in far)


def test_parts_are_of_different_sizes() -> None:
    assert parts(256) == [32, 128, 256]
    assert parts(2) == [1, 2]
    assert parts(1) == [1]


def test_a_fit_is_judged_by_what_it_was_fitted_to() -> None:
    timeline = Timeline()
    for samples, busy_s in ((10, 0.02), (20, 0.03), (40, 0.05)):
        timeline.add("reward", 0.0, 1.0, busy_s, work=samples)
    timeline.add("reward", 0.0, 1.0, 0.5)  # without work
    measured = Measurements(
        rollout=RolloutMeasured(decode=(1e-3, 1e-4, 0.0), prefill=(1.0, 1.0)), reward=(0.01, 1e-3)
    )
    calls = [cost_model.decode(10, 100, 1000, 0.04), cost_model.decode(0, 0, 0, 0.0)]
    found = {fit.kind: fit for fit in fits(measured, calls, timeline)}
    assert set(found) == {"decode", "reward"}  # no prefill was seen
    assert found["reward"].calls == 3
    assert found["reward"].error == pytest.approx(0.0)
    assert found["decode"].error == pytest.approx(0.5)
    assert found["decode"].units == ("iteration", "row", "context token")
