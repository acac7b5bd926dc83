"""What an update takes, and what of it overlap has done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlhfless.measurements import Measurements, TrainingMeasured
from rlhfless.spec import JobSpec
from simulator.cluster import Pool, make_cluster
from simulator.model_shape import load_shape
from simulator.platform.costs import Costs
from simulator.scenario import Scenario
from simulator.workload import LengthModel

LENGTHS = np.array([100.0, 300.0])


def _costs(measured: Measurements | None = None, **training: Any) -> tuple[Costs, Pool]:
    spec = JobSpec.model_validate(
        {
            "model": {"path": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"},
            "dataset": {"path": "/d.jsonl"},
            "rewards": [{"python": "/r.py:f"}],
            "training": {"steps": 1, **training},
        }
    )
    cluster = make_cluster({"pools": {"gpus": {"accelerator": "H100", "per_node": 8}}})
    scenario = Scenario(
        prompts=(),
        evaluation=(),
        workload=LengthModel(median=100, cap=1000),
        shape=load_shape("Qwen/Qwen2.5-7B", "bfloat16"),
        measurements=measured,
    )
    return Costs(spec, cluster, scenario), cluster.pools["gpus"]


def test_a_measured_update_is_linear_in_what_is_left() -> None:
    measured = Measurements(training=TrainingMeasured(update=(0.5, 1e-3)))
    costs, pool = _costs(measured)
    assert costs.update_s(pool, LENGTHS) == pytest.approx(0.9)
    assert costs.update_s(pool, LENGTHS, ready=1.0) == pytest.approx(0.5)
    assert costs.gradients_s(pool, LENGTHS) == pytest.approx(0.4)
    many, pool = _costs(measured, minibatches=4)
    assert many.update_s(pool, LENGTHS, ready=1.0) == pytest.approx(0.5 + 0.6 * 0.4)
    assert many.gradients_s(pool, LENGTHS) == pytest.approx(0.4 * 0.4)


def test_measured_gradients_go_before_the_updates() -> None:
    training = TrainingMeasured(update=(0.5, 1e-3), gradients=(0.01, 1e-4))
    costs, pool = _costs(Measurements(training=training))
    assert costs.gradients_s(pool, LENGTHS) == pytest.approx(0.05)


@pytest.mark.parametrize("minibatches", [1, 4])
def test_what_is_done_ahead_is_spared_later(minibatches: int) -> None:
    costs, pool = _costs(minibatches=minibatches)
    lengths = np.full(64, 1000.0)  # alike, so that ranks are even
    whole_s, ahead_s = costs.update_s(pool, lengths), costs.gradients_s(pool, lengths)
    assert costs.update_s(pool, lengths, ready=1.0) == pytest.approx(whole_s - ahead_s)
    assert costs.update_s(pool, lengths, ready=0.5) == pytest.approx(whole_s - ahead_s / 2)
    assert 0 < ahead_s < whole_s


def test_minibatches_need_old_log_probs() -> None:
    one, pool = _costs()
    four, _ = _costs(minibatches=4)
    lengths = np.full(64, 1000.0)
    assert four.update_s(pool, lengths) > 1.15 * one.update_s(pool, lengths)
