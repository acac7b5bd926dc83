import pytest

from rlhfless.errors import (
    CapacityError,
    ConflictError,
    InternalError,
    RlhflessError,
    TransientError,
    UserError,
    from_problem,
    is_retryable,
)

FAMILIES = [UserError, ConflictError, CapacityError, TransientError, InternalError]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_error_survives_the_wire(family: type[RlhflessError]) -> None:
    error = from_problem(family("what happened", param="model.path", hint="do this").to_problem())
    assert type(error) is family
    assert (error.detail, error.param, error.hint) == ("what happened", "model.path", "do this")


def test_an_unknown_kind_becomes_its_category() -> None:
    assert type(from_problem({"type": "urn:new", "category": "capacity"})) is CapacityError
    assert type(from_problem({"title": "?"})) is InternalError


def test_only_capacity_and_transient_errors_are_retried() -> None:
    assert [is_retryable(family("x")) for family in FAMILIES] == [False, False, True, True, False]


def test_exit_codes_are_distinct_by_family() -> None:
    codes = {f.exit_code for f in (UserError, CapacityError, TransientError, InternalError)}
    assert codes == {2, 3, 4, 5}
