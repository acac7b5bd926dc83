"""Which functions of different jobs may be one another's."""

from __future__ import annotations

from typing import Any

import pytest

from controller.service.kinds import kinds, used_together
from rlhfless.spec import JobSpec


def spec_of(*rewards: dict[str, Any], model: str = "m") -> JobSpec:
    return JobSpec.model_validate(
        {
            "model": {"path": model},
            "dataset": {"path": "d.jsonl"},
            "rewards": list(rewards) or [{"model": "rm"}],
            "algorithm": {"kl": {"coefficient": 0.1}},
        }
    )


def test_what_jobs_have_in_common() -> None:
    one, other = kinds("ada", spec_of()), kinds("ada", spec_of(model="n"))
    assert one == kinds("ada", spec_of())
    assert set(one) == {"rollout", "reward", "reference"}
    assert one["reward"] == other["reward"]
    assert one["reference"] != other["reference"]
    assert not set(one.values()) & set(kinds("bob", spec_of()).values())


@pytest.mark.parametrize(
    ("rewards", "together"),
    [
        ([{"model": "rm"}], {"reference", "reward"}),
        ([{"http": "https://rewards.test"}], {"reference", "reward"}),
        ([{"python": "r.py:f"}], {"reference"}),
        ([{"model": "rm"}, {"python": "r.py:f"}], {"reference"}),
    ],
)
def test_what_jobs_may_use_at_once(rewards: list[dict[str, Any]], together: set[str]) -> None:
    assert used_together(spec_of(*rewards)) == together
