"""From what the service keeps to what it answers (``rlhfless.rest``)."""

from __future__ import annotations

from collections.abc import Sequence

from controller.service.events import JobEvent
from controller.service.records import JobRecord
from controller.service.service import Service
from controller.service.standing import Standing, forecast, progress, standings
from controller.service.states import FINAL
from rlhfless import rest


async def job_documents(service: Service, records: Sequence[JobRecord]) -> list[rest.Job]:
    found = await standings(service, [record.id for record in records])
    return [_document(record, one) for record, one in zip(records, found, strict=True)]


async def job_document(service: Service, record: JobRecord) -> rest.Job:
    return (await job_documents(service, [record]))[0]


def new_document(record: JobRecord) -> rest.Job:
    """Of a job that was accepted just now: it says the same whenever it is asked for again."""
    return _document(record, Standing())


def _document(record: JobRecord, standing: Standing) -> rest.Job:
    running = record.state in ("running", "pausing")
    reason = record.reason
    if record.state == "queued" and standing.waiting is not None:
        reason = standing.waiting
    return rest.Job(
        id=record.id,
        name=record.spec.get("name", ""),
        created_at=record.created_at,
        updated_at=record.updated_at,
        finished_at=record.updated_at if record.state in FINAL else None,
        state=record.state,
        reason=reason,
        states={
            state: rest.StateEntered(at=entry.at, reason=entry.reason)
            for state, entry in record.entered.items()
        },
        error=None if record.error is None else rest.Problem.model_validate(record.error),
        progress=progress(standing, running=running),
        forecast=forecast(standing, running=running),
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
