from hypothesis import given
from hypothesis import strategies as st

from controller.service.job_control import (
    Heeded,
    JobControl,
    least_instances,
    most_instances,
    split,
)
from rlhfless.messages import FunctionName
from rlhfless.spec import JobSpec

SPEC = JobSpec.model_validate(
    {
        "model": {"path": "model"},
        "dataset": {"path": "data"},
        "rewards": [{"http": "http://reward"}],
        "algorithm": {"kl": {"coefficient": 0.1}},
        "rollout": {"max_instances": 3},
    }
)


def test_each_function_has_one_instance_and_the_rollout_the_next() -> None:
    assert split(SPEC, 4) == {"rollout": 1, "reference": 1, "reward": 1, "training": 1}
    assert split(SPEC, 5) == {"rollout": 2, "reference": 1, "reward": 1, "training": 1}


@given(instances=st.integers(4, 20))
def test_no_more_is_dealt_out_than_there_is_or_than_is_of_use(instances: int) -> None:
    limits = split(SPEC, instances)
    assert sum(limits.values()) == min(instances, most_instances(SPEC))
    assert all(1 <= most <= SPEC.function(name).max_instances for name, most in limits.items())


def test_the_platform_is_told_of_what_changes() -> None:
    told: list[tuple[FunctionName, int]] = []
    control = JobControl(SPEC, least_instances(SPEC))
    control.attach(lambda function, most: told.append((function, most)))
    assert sorted(told) == [("reference", 1), ("reward", 1), ("rollout", 1), ("training", 1)]
    told.clear()
    control.hold(6)
    control.hold(6)
    assert told == [("rollout", 3)]
    assert control.most("rollout") == 3


def test_a_job_is_asked_to_stop_and_asked_no_longer() -> None:
    control = JobControl(SPEC, 4)
    assert control.stopping() is None
    control.ask("pause", "by its owner")
    assert control.stopping() == "by its owner"
    control.ask(None)
    assert control.stopping() is None


def test_what_a_job_heeded_is_known_whatever_it_is_asked_then() -> None:
    control = JobControl(SPEC, 4)
    control.ask("pause", "by its owner")
    assert control.heeded is None
    control.stopping()
    control.ask(None)
    assert control.heeded == Heeded("pause", "by its owner")
