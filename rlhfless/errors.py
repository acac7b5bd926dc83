"""The errors of rlhfless: few families, each with one meaning for retries and exit codes.

    RlhflessError
    ├── UserError        what the user wrote cannot work; never retried          exit 2
    │   ├── ConflictError    the named version or run is already taken           exit 2
    │   ├── NotFoundError    there is no such thing, or it is not yours to see   exit 2
    │   ├── UnauthenticatedError  no key, or one that is not valid               exit 2
    │   └── ForbiddenError   the key is valid, but not for this                  exit 2
    ├── CapacityError    no instance, memory or disk to be had now; retried      exit 3
    ├── TransientError   a stream broke, an instance died; retried elsewhere     exit 4
    └── InternalError    a defect of ours, or retries are used up                exit 5

Over the wire an error is an RFC 9457 problem document; ``from_problem`` restores the family, so a
controller handles an error of a remote function as if it had been raised beside it.
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar, Literal

Category = Literal["user", "capacity", "transient", "internal"]


class RlhflessError(Exception):
    """Base of all errors a caller may meet.

    ``detail`` is one or two sentences for a person; ``hint`` says what to do next; ``param`` is the
    path of the job-spec field or request field at fault, e.g. ``dataset.columns.prompt``; ``trace``
    is a trace for whoever asks for it (``--verbose``), e.g. that of the user's own code.
    """

    category: ClassVar[Category] = "internal"
    title: ClassVar[str] = "Internal error"
    exit_code: ClassVar[int] = 5
    status: ClassVar[int] = 500

    def __init__(
        self,
        detail: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        trace: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.param = param
        self.hint = hint
        self.trace = trace

    def to_problem(self) -> dict[str, Any]:
        """The problem document (RFC 9457) of this error; absent members are left out."""
        problem: dict[str, Any] = {
            "type": f"urn:rlhfless:{type(self).__name__}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "category": self.category,
        }
        if self.param is not None:
            problem["param"] = self.param
        if self.hint is not None:
            problem["hint"] = self.hint
        if self.trace is not None:
            problem["trace"] = self.trace
        return problem


class UserError(RlhflessError):
    category = "user"
    title = "Invalid request"
    exit_code = 2
    status = 422


class ConflictError(UserError):
    title = "Conflict"
    status = 409


class NotFoundError(UserError):
    title = "Not found"
    status = 404


class UnauthenticatedError(UserError):
    title = "Not authenticated"
    status = 401


class ForbiddenError(UserError):
    title = "Not allowed"
    status = 403


class CapacityError(RlhflessError):
    category = "capacity"
    title = "No capacity"
    exit_code = 3
    status = 503


class TransientError(RlhflessError):
    category = "transient"
    title = "Temporarily unavailable"
    exit_code = 4
    status = 503


class InternalError(RlhflessError):
    pass


_FAMILIES: dict[str, type[RlhflessError]] = {
    f"urn:rlhfless:{cls.__name__}": cls
    for cls in (
        UserError,
        ConflictError,
        NotFoundError,
        UnauthenticatedError,
        ForbiddenError,
        CapacityError,
        TransientError,
        InternalError,
    )
}
_BY_CATEGORY: dict[str, type[RlhflessError]] = {
    "user": UserError,
    "capacity": CapacityError,
    "transient": TransientError,
    "internal": InternalError,
}


def from_problem(problem: dict[str, Any]) -> RlhflessError:
    """Restore the error a problem document stands for; an unknown kind becomes its category's."""
    cls = _FAMILIES.get(str(problem.get("type"))) or _BY_CATEGORY.get(
        str(problem.get("category")), InternalError
    )
    detail = str(problem.get("detail") or problem.get("title") or "unknown error")
    return cls(
        detail,
        param=problem.get("param"),
        hint=problem.get("hint"),
        trace=problem.get("trace"),
    )


_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
_NOT_SO = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ELOOP,
    errno.ENAMETOOLONG,
}


def of_os_error(failed: str, error: OSError) -> RlhflessError:
    """What ``failed`` ("cannot write /x/y"), as an error of ours.

    ``CapacityError`` where room or handles are wanting, ``UserError`` where the path cannot be used
    like that, else ``TransientError``: a device or network file system that fails.
    """
    detail = f"{failed}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CapacityError(detail, hint="make room there")
    if error.errno in _NO_ROOM:
        return CapacityError(detail)
    if error.errno in _NOT_SO or isinstance(error, PermissionError):
        return UserError(detail, hint="see that the path is right and that you may write there")
    return TransientError(detail)


def is_retryable(error: BaseException) -> bool:
    """Only lost capacity and broken streams are worth another attempt."""
    return isinstance(error, CapacityError | TransientError)


def first_error(error: BaseException) -> BaseException:
    """The first leaf of nested exception groups: task groups wrap what went wrong in them. Our own
    errors go before others, which are often their consequence."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [first_error(child) for child in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, RlhflessError)), leaves[0])
