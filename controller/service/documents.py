"""From what the service keeps to what it answers (``rlhfless.rest``)."""

from __future__ import annotations

from controller.service.events import JobEvent
from controller.service.registry import JobRecord
from controller.service.states import FINAL
from rlhfless import rest


def job_document(record: JobRecord) -> rest.Job:
    return rest.Job(
        id=record.id,
        name=record.spec.get("name", ""),
        created_at=record.created_at,
        updated_at=record.updated_at,
        finished_at=record.updated_at if record.state in FINAL else None,
        state=record.state,
        reason=record.reason,
        states={
            state: rest.StateEntered(at=entry.at, reason=entry.reason)
            for state, entry in record.entered.items()
        },
        metadata=record.spec.get("metadata", {}),
        spec=record.spec,
    )


def event_document(event: JobEvent) -> rest.Event:
    return rest.Event(
        id=event.id,
        created_at=event.created_at,
        type=event.type,
        level=event.level,
        message=event.message,
        data=event.data,
    )
