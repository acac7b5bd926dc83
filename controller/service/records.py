"""What the service keeps of a job, and under which keys (``controller.service.registry``)."""

from __future__ import annotations

import re
import secrets
from typing import Any

import msgspec

from controller.service.events import JobEvent
from controller.service.states import State
from rlhfless.errors import NotFoundError

OPEN_JOBS = "rlhfless:jobs:open"
ENDED_JOBS = "rlhfless:jobs:ended"
KEPT_JOBS = "rlhfless:jobs:kept"
REMOVED_JOBS = "rlhfless:jobs:removed"
WEBHOOK_JOBS = "rlhfless:webhooks"
_ID = re.compile(r"job-[0-9a-f]{28}")


class Entry(msgspec.Struct, frozen=True):
    """When (Unix seconds) and why a job entered a state."""

    at: float
    reason: str | None = None


class Setback(msgspec.Struct, frozen=True):
    """An attempt at the job failed in a way that may pass: the next is made ``at`` (Unix seconds).
    ``attempts``: so many have failed in a row without a step between."""

    at: float
    attempts: int
    detail: str


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``spec`` is the resolved job spec; ``entered`` the last time each state was entered;
    ``error`` the problem document of a failure. ``removed``: nobody is told of it any more, and
    what it left goes (``controller.service.removal``)."""

    id: str
    tenant: str
    spec: dict[str, Any]
    created_at: float
    state: State
    entered: dict[State, Entry]
    setback: Setback | None = None
    error: dict[str, Any] | None = None
    removed: bool = False

    @property
    def updated_at(self) -> float:
        return self.entered[self.state].at

    @property
    def reason(self) -> str | None:
        return self.entered[self.state].reason

    def as_created(self) -> JobRecord:
        """The record as its creation was answered."""
        created = {"queued": Entry(self.created_at)}
        return msgspec.structs.replace(self, state="queued", entered=created)


class JobPage(msgspec.Struct, frozen=True):
    data: list[JobRecord]
    has_more: bool


read_record = msgspec.json.Decoder(JobRecord).decode
write_record = msgspec.json.encode


def check_id(job: str, param: str | None = None) -> None:
    """Raises ``NotFoundError`` for what is no job's id."""
    if not _ID.fullmatch(job):
        raise NotFoundError(f"there is no job {job[:80]!r}", param=param)


def owned(raw: bytes | None, tenant: str, job: str, param: str | None = None) -> JobRecord:
    """A record as it was stored. Raises ``NotFoundError`` unless it is the tenant's."""
    record = read_record(raw) if raw is not None else None
    if record is None or record.removed or record.tenant != tenant:
        raise NotFoundError(f"there is no job {job!r}", param=param)
    return record


def state_event(record: JobRecord) -> JobEvent:
    """What tells of the state that a job has entered."""
    message = record.state if record.reason is None else f"{record.state}: {record.reason}"
    data = {"state": record.state, "reason": record.reason}
    return JobEvent(
        type="state",
        message=message,
        level="error" if record.state == "failed" else "info",
        data=data,
    )


def new_id(at: float) -> str:
    """Milliseconds, so that ids sort by age, and 64 random bits, so that none is guessed."""
    return f"job-{int(at * 1000):012x}{secrets.token_hex(8)}"


def record_key(job: str) -> str:
    return f"rlhfless:{{{job}}}:record"


def secrets_key(job: str) -> str:
    return f"rlhfless:{{{job}}}:secrets"


def jobs_key(tenant: str) -> str:
    return f"rlhfless:tenant:{tenant}:jobs"


def open_key(tenant: str) -> str:
    return f"rlhfless:tenant:{tenant}:open"


def users_key(job: str) -> str:
    return f"rlhfless:{{{job}}}:users"
