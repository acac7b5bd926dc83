"""What the Kubernetes API refuses, and what that is to a job."""

from __future__ import annotations

from rlhfless.errors import CapacityError, ForbiddenError, RlhflessError, UserError

_DOCTOR = "`rlhfless doctor --cluster` says what is missing"


class Refusal(Exception):
    """The API server's answer, if it is not the one wanted."""

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after_s = status, message, retry_after_s

    @property
    def passes(self) -> bool:
        return self.status == 429 or self.status >= 500

    def error(self, deed: str) -> RlhflessError:
        """What to raise where it does not pass."""
        detail = f"Kubernetes refused to {deed}: {self.message}"
        if self.status == 403 and "quota" in self.message:
            return CapacityError(detail)
        if self.status in (401, 403):
            return ForbiddenError(detail, hint=_DOCTOR)
        return UserError(detail, hint=_DOCTOR)
