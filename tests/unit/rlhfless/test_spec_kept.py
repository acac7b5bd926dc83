"""Specs of another release."""

from typing import Any

import pytest
from pydantic import ValidationError

from rlhfless.spec import JobSpec
from rlhfless.spec_kept import kept_spec

SPEC: dict[str, Any] = {
    "model": {"path": "org/model"},
    "dataset": {"path": "org/data"},
    "rewards": [{"http": "http://reward"}],
}


def test_fields_of_a_newer_release_are_passed_over() -> None:
    spec = JobSpec.model_validate(SPEC)
    newer = spec.model_dump(mode="json")
    newer["novelty"] = {"on": True}
    newer["rollout"]["speed"] = 9
    newer["rewards"][0]["mood"] = "good"
    with pytest.raises(ValidationError):
        JobSpec.model_validate(newer)
    assert kept_spec(newer) == spec
    assert newer["rollout"]["speed"] == 9


def test_what_is_no_spec_of_any_release_is_refused() -> None:
    with pytest.raises(ValidationError):
        kept_spec({**SPEC, "novelty": 1, "rewards": 7})
