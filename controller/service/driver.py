"""The driver of a replica: takes its part of the jobs that may run, and runs them.

Every turn, some twice a second and at once when something was asked of this replica, it looks at
all open jobs, has the fair queue deal out the instances anew, tells the jobs it drives what changed
(their owner wants a pause, others' turn has come, they hold more or fewer instances), ends those
that were cancelled, and takes the lease of jobs that hold what they need and that nobody drives.
Jobs that lost their replica and then their turn are put back into the queue. When it ends, its jobs
stay as they are; another replica goes on with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from controller.service.attempt import Attempt
from controller.service.hosts import Host
from controller.service.job_control import JobControl, least_instances, most_instances
from controller.service.lease import Leases
from controller.service.queue import Candidate
from controller.service.records import JobRecord, read_record
from controller.service.reporter import Reached, read_reached
from controller.service.service import Service
from controller.service.shares import QueueState
from rlhfless.errors import CapacityError, ConflictError, NotFoundError, TransientError
from rlhfless.spec import JobSpec
from rlhfless.spec_kept import kept_spec

TURN_S = 0.5
REST_S = 0.1
"""Between turns at least: what many ask at once is looked at once."""
LEND_AFTER_S = 2.0
"""A job that has been training for so long is likely to go on for as long again: until then others
may have what its rollout does not use."""
MAX_STARTS = 4
"""Jobs taken in one turn; the other replicas take the next."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Driven:
    attempt: Attempt
    task: asyncio.Task[None]


class Driver:
    """``leases``: those that this replica takes."""

    def __init__(self, service: Service, host: Host, leases: Leases) -> None:
        self._service = service
        self._host = host
        self._leases = leases
        self._driven: dict[str, _Driven] = {}
        self._let_go: set[str] = set()
        self._seen: dict[bytes, tuple[JobRecord, JobSpec | None]] = {}
        """Open jobs by what was stored of them at the last turn; None: not understood."""

    async def run(self) -> None:
        """Until it is cancelled; its jobs' attempts are ended then."""
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    await self.turn(group)
                except (TransientError, CapacityError) as error:
                    _log.warning("the queue waits: %s", error.detail)
                await asyncio.sleep(REST_S)
                await self._service.until_changed(TURN_S - REST_S)

    async def turn(self, group: asyncio.TaskGroup) -> None:
        """One look at all open jobs; attempts begin in ``group``."""
        self._let_go |= {job for job, one in self._driven.items() if one.task.done()}
        self._driven = {job: one for job, one in self._driven.items() if not one.task.done()}
        specs = await self._look()
        records = [record for record, spec in self._seen.values() if spec is not None]
        tenants = sorted({record.tenant for record in records})
        limits = await self._service.tenants.limits_of(tenants)
        over = await self._service.tenants.over_quota(limits)
        quotas = {tenant: one.of_queue() for tenant, one in limits.items()}
        barred = {record.id: why for record in records if (why := over.get(record.tenant))}
        reached = await read_reached(self._service.redis, [r.id for r in records])
        candidates = [
            candidate(record, specs[record.id], reached[record.id])
            for record in records
            if record.id not in barred and _may_run(record)
        ]
        used = {job: one.attempt.instances for job, one in self._driven.items()}
        state = await self._service.shares.turn(candidates, quotas, used, barred, self._let_go)
        self._let_go = set()
        self._measure(records)
        by_id = {record.id: record for record in records}
        for job, one in self._driven.items():
            _tell(one, by_id.get(job), state, barred.get(job))
        undriven = [record for record in records if record.id not in self._driven]
        await self._put_back(record for record in undriven if record.id not in state.grants)
        granted = [record for record in undriven if record.id in state.grants]
        await self._start(group, granted, specs, state)

    async def _look(self) -> dict[str, JobSpec]:
        """What each open job needs, of those of which this release can tell it; others see to the
        others. What is stored as it was is not read again: where hundreds of jobs wait, that would
        be most of a turn."""
        stored = await self._service.registry.stored_open_jobs()
        self._seen = {raw: self._seen.get(raw) or _read(raw) for raw in stored}
        return {record.id: spec for record, spec in self._seen.values() if spec is not None}

    def _measure(self, records: Sequence[JobRecord]) -> None:
        metrics = self._service.metrics
        metrics.set_jobs(Counter(record.state for record in records))
        metrics.set_driven(len(self._driven))
        metrics.set_instances(self._host.stats())

    async def _start(
        self,
        group: asyncio.TaskGroup,
        records: Iterable[JobRecord],
        specs: Mapping[str, JobSpec],
        state: QueueState,
    ) -> None:
        room = min(self._service.settings.max_running_jobs - len(self._driven), MAX_STARTS)
        for record in records:
            if room <= 0:
                return
            held = state.held(record.id)
            if not _may_run(record) or held < least_instances(specs[record.id]):
                continue
            try:
                spec = JobSpec.model_validate(record.spec)
            except ValidationError:
                continue  # of a newer release, whose replicas know what to make of it
            lease = await self._leases.acquire(record.id)
            if lease is None:
                continue
            control = JobControl(spec, held)
            attempt = Attempt(self._service, self._host, self._leases, lease, record, control)
            task = group.create_task(attempt.run(), name=f"drive-{record.id}")
            self._driven[record.id] = _Driven(attempt, task)
            room -= 1

    async def _put_back(self, records: Iterable[JobRecord]) -> None:
        """Whose turn it is not, but who are on record as running: their replica was lost."""
        for record in records:
            if record.state not in ("running", "pausing"):
                continue
            lease = await self._leases.acquire(record.id)
            if lease is None:
                continue
            running = record.state == "running"
            with contextlib.suppress(ConflictError, NotFoundError):  # it was ended meanwhile
                async with self._leases.keeping(lease):
                    await self._service.registry.move(
                        record.tenant,
                        record.id,
                        "queued" if running else "paused",
                        "its replica was lost" if running else record.reason,
                        fence=lease.fence,
                        only_from=record.state,
                    )


def _read(raw: bytes) -> tuple[JobRecord, JobSpec | None]:
    record = read_record(raw)
    try:
        return record, kept_spec(record.spec)
    except ValidationError as error:
        _log.warning("job %s is of another release: %s", record.id, error)
        return record, None


def _may_run(record: JobRecord) -> bool:
    if record.state == "queued":
        return record.setback is None or record.setback.at <= time.time()
    return record.state in ("running", "pausing")


def candidate(record: JobRecord, spec: JobSpec, reached: Reached) -> Candidate:
    """What the fair queue is to know of a job. One that trains lends what only its rollout uses."""
    least = least_instances(spec)
    lends = reached.phase == "train" and time.time() - reached.since > LEND_AFTER_S
    return Candidate(
        job=record.id,
        tenant=record.tenant,
        least=least,
        most=least if lends else most_instances(spec),
        submitted_s=record.created_at,
        running=record.state != "queued",
    )


def _tell(driven: _Driven, record: JobRecord | None, state: QueueState, barred: str | None) -> None:
    """Let a running job know what changed; end it if it is over (``record`` None) for everybody
    else. ``barred``: why its tenant's jobs may not run."""
    control, job = driven.attempt.control, driven.attempt.job
    if record is None:
        driven.task.cancel()
        return
    if record.state == "pausing":
        control.ask("pause", record.reason or "")
    elif record.state == "running" and job not in state.grants:
        control.ask("yield", barred or f"others' turn: {state.waiting.get(job, '')}")
    else:
        control.ask(None)
    control.hold(state.held(job))
