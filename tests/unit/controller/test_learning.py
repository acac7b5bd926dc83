"""What a start costs: until the instance is ready, and what its first call loads."""

from typing import Any

import pytest

from controller.learning import PolicyState, cold_starts, learn_training
from controller.ledger import Ledger
from controller.timeline import Timeline
from rlhfless.messages import TrainDone
from rlhfless.spec import JobSpec
from scaling import cost_model


def _spec(**training: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "model": {"path": "/m"},
            "dataset": {"path": "/d.jsonl"},
            "rewards": [{"python": "/r.py:f"}],
            "training": {"steps": 1, **training},
        }
    )


def test_a_start_costs_its_cold_time_and_what_the_first_call_loads() -> None:
    ledger, timeline = Ledger(), Timeline()
    for number, ready_s in enumerate((1.0, 3.0, 2.0)):
        ledger.started(f"rollout-{number}", "rollout", 0.0)
        ledger.phase(f"rollout-{number}", "idle", ready_s)
    timeline.add("rollout", 3.0, 9.0, 5.0, load_s=4.0)
    timeline.add("rollout", 9.0, 12.0, 3.0)
    starts = cold_starts(ledger, timeline, float("-inf"), 12.0)
    model = cost_model.fit(cost_model.observe(cost_model.CostState(), cold_starts=starts))
    assert model.cold_start_s("rollout") == 2.0 + 4.0
    assert model.cold_start_s("reward") == cost_model.PRIOR_COLD_START_S


def test_starts_that_were_learned_are_not_learned_again() -> None:
    ledger, timeline = Ledger(), Timeline()
    ledger.started("rollout-1", "rollout", 0.0)
    ledger.phase("rollout-1", "idle", 1.0)
    timeline.add("rollout", 1.0, 2.0, 1.0, load_s=0.5)
    assert cold_starts(ledger, timeline, 2.0, 9.0) == []


def test_instances_that_start_beside_training_are_learned_from() -> None:
    """Those started ahead of the next step: after the look ahead, before the step's end."""
    ledger, timeline = Ledger(), Timeline()
    for number, ready_s in enumerate((2.0, 5.0)):
        ledger.started(f"rollout-{number}", "rollout", 0.0)
        ledger.phase(f"rollout-{number}", "idle", ready_s)
    looked_s, end_s = 4.0, 6.0
    before = cold_starts(ledger, timeline, 0.0, looked_s)
    meanwhile = cold_starts(ledger, timeline, looked_s, end_s)
    assert (before, meanwhile) == ([("rollout", 2.0)], [("rollout", 5.0)])
    learned = learn_training(
        _spec(), PolicyState(), 10, TrainDone(version=1, metrics={}, train_s=1.0), meanwhile
    )
    assert learned.costs.cold_starts == {"rollout": [5.0]}


@pytest.mark.parametrize(("minibatches", "left"), [(1, 0.2), (4, 0.68)])
def test_overlap_leaves_what_comes_after_the_first_optimizer_step(
    minibatches: int, left: float
) -> None:
    trained = TrainDone(version=1, metrics={"training/overlapped_share": 0.8}, train_s=1.0)
    learned = learn_training(_spec(minibatches=minibatches), PolicyState(), 1000, trained)
    assert learned.training_share == pytest.approx(left)
    (call,) = learned.costs.calls["training"]
    assert call.features == (1, round(1000 * left))
