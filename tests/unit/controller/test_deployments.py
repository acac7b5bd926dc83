"""From a job's spec to what runs and how it is booked."""

from __future__ import annotations

from typing import Any

import pytest

from controller.deployments import deployments, new_ledger
from rlhfless.spec import JobSpec


def spec_of(**training: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "model": {"path": "m"},
            "dataset": {"path": "d.jsonl"},
            "rewards": [{"python": "r.py:f"}],
            "rollout": {"price_usd_per_hour": 3600.0},
            "training": {"price_usd_per_hour": 3600.0, **training},
        }
    )


def test_only_training_has_several_workers() -> None:
    found = {each.function: each.workers for each in deployments(spec_of(workers=4))}
    assert found == {"rollout": 1, "reward": 1, "training": 4}


def test_an_instance_is_booked_with_all_its_workers() -> None:
    ledger = new_ledger(deployments(spec_of(workers=4)))
    for function in ("rollout", "training"):
        ledger.started(function, function, 0.0)
        ledger.phase(function, "busy", 1.0)
        ledger.stopped(function, 3.0)
    usage = ledger.usage(3.0)
    assert (usage["rollout"].held_s, usage["rollout"].usd) == (3.0, 3.0)
    assert (usage["training"].cold_s, usage["training"].busy_s) == (4.0, 8.0)
    assert usage["training"].usd == pytest.approx(12.0)
    assert usage["training"].idle_fraction == 0.0
