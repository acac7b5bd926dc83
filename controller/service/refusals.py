"""Refusals that only a service has."""

from __future__ import annotations

from controller.redis_calls import StoreAwayError
from rlhfless.errors import CapacityError, RlhflessError, TransientError, UserError


class TooLargeError(UserError):
    title = "Request too large"
    status = 413


class StillWorkingError(TransientError):
    """Somebody asks for the same at the same time. ``retry_after_s``: when to ask again."""

    title = "Still working"
    status = 409
    retry_after_s = 2


class TooManyRequestsError(CapacityError):
    """``retry_after_s``: when to ask again."""

    title = "Too many requests"
    status = 429

    def __init__(self, detail: str, *, retry_after_s: int, hint: str | None = None) -> None:
        super().__init__(detail, hint=hint)
        self.retry_after_s = retry_after_s


def as_told(error: RlhflessError) -> RlhflessError:
    """The error as tenants hear of it: where the service keeps what it knows is not their
    concern."""
    if isinstance(error, StoreAwayError):
        return TransientError(
            "the job store cannot be reached",
            hint="ask again in a moment; jobs that were accepted are safe",
        )
    return error
