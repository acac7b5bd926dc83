"""Drafting, from the job spec to the instances and back into the step's metrics."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from controller.deployments import deployments
from controller.rollout_stats import RolloutStats
from controller.step_metrics import drafting_metrics
from rlhfless.engines import DraftingOptions
from rlhfless.messages import RolloutDone
from rlhfless.spec import RolloutSpec
from tests.support.world import make_spec


def options(**rollout: object) -> DraftingOptions | None:
    found = {d.function: d.engine for d in deployments(make_spec(rollout=rollout))}
    assert found["training"].drafting is None
    assert not found["rollout"].greedy
    return found["rollout"].drafting


def test_what_a_job_says_reaches_its_rollout_instances() -> None:
    assert options() is None
    assert options(drafting={}) == DraftingOptions()
    wanted = {"max_tokens": 3, "memory_mib": 16, "free_tokens": 200.0}
    assert options(drafting=wanted) == DraftingOptions(**wanted)


def test_drafting_needs_vllm() -> None:
    with pytest.raises(ValidationError, match="needs the engine vllm"):
        RolloutSpec.model_validate({"engine": "transformers", "drafting": {}})


def test_drafts_are_added_up_over_the_calls() -> None:
    stats = RolloutStats()
    assert drafting_metrics(stats) == {}
    stats.add(RolloutDone(draft_tokens=30, accepted_tokens=10))
    stats.add(RolloutDone(draft_tokens=10, accepted_tokens=10))
    assert drafting_metrics(stats) == {
        "drafting/draft_tokens": 40,
        "drafting/accepted_tokens": 20,
        "drafting/acceptance": 0.5,
    }
