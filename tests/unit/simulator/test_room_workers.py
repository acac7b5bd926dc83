"""Several training workers in an estimate."""

from __future__ import annotations

from typing import Any

import pytest

from rlhfless.errors import UserError
from rlhfless.spec import JobSpec
from simulator.estimate import estimate
from simulator.known_clusters import find_cluster


def spec_of(workers: int) -> JobSpec:
    return JobSpec.model_validate(
        {
            "model": {"path": "Qwen/Qwen2.5-7B"},
            "dataset": {"path": "d.jsonl"},
            "rewards": [{"http": "http://scorer"}],
            "training": {"accelerator": "cuda", "workers": workers, "steps": 2},
        }
    )


def changed(**placement: Any) -> dict[str, Any]:
    return {f"placements.training.{name}": value for name, value in placement.items()}


@pytest.mark.parametrize("workers", [4, 8])
def test_workers_are_the_ranks_of_the_estimate(workers: int) -> None:
    cluster = find_cluster("h100-8").cluster()
    found = estimate(spec_of(workers), cluster)
    assert found.usage["training"].accelerators == workers


def test_more_workers_than_the_cluster_has_are_refused() -> None:
    with pytest.raises(UserError, match="the pool has 8"):
        estimate(spec_of(16), find_cluster("h100-8").cluster())


@pytest.mark.parametrize("placement", [{"pipeline_parallel": 2}, {"tensor_parallel": 2}])
def test_a_placement_that_splits_the_model_is_refused(placement: dict[str, int]) -> None:
    cluster = find_cluster("h100-8").cluster(changed(**placement))
    with pytest.raises(UserError, match="splits a model over 2") as caught:
        estimate(spec_of(8), cluster)
    assert caught.value.param == "training.workers"
