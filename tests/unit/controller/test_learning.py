"""What a start costs: until the instance is ready, and what its first call loads."""

from controller.learning import cold_starts
from controller.ledger import Ledger
from controller.timeline import Timeline
from scaling import cost_model


def test_a_start_costs_its_cold_time_and_what_the_first_call_loads() -> None:
    ledger, timeline = Ledger(), Timeline()
    for number, ready_s in enumerate((1.0, 3.0, 2.0)):
        ledger.started(f"rollout-{number}", "rollout", 0.0)
        ledger.phase(f"rollout-{number}", "idle", ready_s)
    timeline.add("rollout", 3.0, 9.0, 5.0, load_s=4.0)
    timeline.add("rollout", 9.0, 12.0, 3.0)
    starts = cold_starts(ledger, timeline, float("-inf"))
    model = cost_model.fit(cost_model.observe(cost_model.CostState(), cold_starts=starts))
    assert model.cold_start_s("rollout") == 2.0 + 4.0
    assert model.cold_start_s("reward") == cost_model.PRIOR_COLD_START_S


def test_starts_that_were_learned_are_not_learned_again() -> None:
    ledger, timeline = Ledger(), Timeline()
    ledger.started("rollout-1", "rollout", 0.0)
    ledger.phase("rollout-1", "idle", 1.0)
    timeline.add("rollout", 1.0, 2.0, 1.0, load_s=0.5)
    assert cold_starts(ledger, timeline, 2.0) == []
