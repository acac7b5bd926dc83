import errno
import os

import pytest

from rlhfless.errors import (
    CapacityError,
    ConflictError,
    ForbiddenError,
    InternalError,
    NotFoundError,
    RlhflessError,
    TransientError,
    UnauthenticatedError,
    UserError,
    from_problem,
    is_retryable,
    of_os_error,
)

FAMILIES = [UserError, ConflictError, CapacityError, TransientError, InternalError]
REFUSALS = {NotFoundError: 404, UnauthenticatedError: 401, ForbiddenError: 403}


@pytest.mark.parametrize("family", [*FAMILIES, *REFUSALS])
def test_an_error_survives_the_wire(family: type[RlhflessError]) -> None:
    error = from_problem(family("what happened", param="model.path", hint="do this").to_problem())
    assert type(error) is family
    assert (error.detail, error.param, error.hint) == ("what happened", "model.path", "do this")


@pytest.mark.parametrize(("family", "status"), REFUSALS.items())
def test_a_refusal_has_its_status(family: type[RlhflessError], status: int) -> None:
    assert family("x").to_problem()["status"] == status
    assert family.exit_code == 2


def test_an_unknown_kind_becomes_its_category() -> None:
    assert type(from_problem({"type": "urn:new", "category": "capacity"})) is CapacityError
    assert type(from_problem({"title": "?"})) is InternalError


def test_only_capacity_and_transient_errors_are_retried() -> None:
    assert [is_retryable(family("x")) for family in FAMILIES] == [False, False, True, True, False]


def test_exit_codes_are_distinct_by_family() -> None:
    codes = {f.exit_code for f in (UserError, CapacityError, TransientError, InternalError)}
    assert codes == {2, 3, 4, 5}


@pytest.mark.parametrize(
    ("number", "family"),
    [
        (errno.ENOSPC, CapacityError),
        (errno.EMFILE, CapacityError),
        (errno.EACCES, UserError),
        (errno.EROFS, UserError),
        (errno.ENOTDIR, UserError),
        (errno.EIO, TransientError),
        (errno.ESTALE, TransientError),
    ],
)
def test_what_the_system_refuses_gets_the_family_of_what_helps(
    number: int, family: type[RlhflessError]
) -> None:
    error = of_os_error("cannot write x", OSError(number, os.strerror(number), "x"))
    assert type(error) is family
    assert error.detail == f"cannot write x: {os.strerror(number)}"


def test_an_error_of_the_system_without_a_number_is_told_by_its_text() -> None:
    assert of_os_error("cannot write x", OSError("no bucket")).detail == "cannot write x: no bucket"
