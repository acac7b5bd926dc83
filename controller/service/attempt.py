"""One replica's go at one job: from the lease it was granted to the end, or to the next setback.

How an attempt ends is on record before its lease is given up: the job has succeeded, failed, is
paused, or waits for another attempt. Only where the job store cannot be reached, or the lease was
lost, nothing is written; then the job is still running, and whoever gets the lease next goes on
from its journal.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any

from controller.deployments import deployments, new_ledger
from controller.execution import Execution, execute
from controller.fencing import LostLeaseError
from controller.integrations.trackers import Place, Trackers, tracking
from controller.job import Event, Observer
from controller.job_store import JobStore
from controller.known import Known
from controller.orchestrator import Outcome
from controller.platforms.local_logs import LogSlice
from controller.service.accounting import Accounting
from controller.service.events import JobEndedError, JobEvent
from controller.service.hosts import Host, JobPlatform, Wanted
from controller.service.job_control import JobControl
from controller.service.kinds import kinds, used_together
from controller.service.lease import Lease, Leases
from controller.service.log_keeper import tailing
from controller.service.records import JobRecord, Setback
from controller.service.refusals import as_told
from controller.service.reporter import Reporter, announce
from controller.service.samples import SampleKeeper
from controller.service.service import Service
from controller.service.states import FINAL, State
from controller.service.timeline_log import recording
from rlhfless.errors import (
    CapacityError,
    ConflictError,
    InternalError,
    NotFoundError,
    RlhflessError,
    TransientError,
    UserError,
    first_error,
)
from rlhfless.spec import JobSpec
from rlhfless.spec_file import dump_spec
from rlhfless.spec_secrets import merge, redacted, secret_texts

ATTEMPTS: dict[type[RlhflessError], float] = {
    CapacityError: float("inf"),
    TransientError: 10,
    InternalError: 3,
}
"""Failures in a row, without a step between, after which a job fails. Room may come back whenever
somebody makes some."""
LONGEST_WAIT_S = 60.0
DEFECT_PAUSE_S = 5.0
FAULT = "Error in the job"
"""Title of a failure that the job's owner can mend."""
_log = logging.getLogger(__name__)


class Attempt:
    """``control`` is how the driver reaches the job while it runs."""

    def __init__(
        self,
        service: Service,
        host: Host,
        leases: Leases,
        lease: Lease,
        record: JobRecord,
        control: JobControl,
    ) -> None:
        self._service = service
        self._host = host
        self._leases = leases
        self._lease = lease
        self._record = record
        self.job = record.id
        self.control = control
        self._platform: JobPlatform | None = None
        self._journal = JobStore(service.redis, record.id, lease.fence, announce)
        self._reporter = Reporter(record.id, service.events, self._journal, lease.fence)
        self._accounting = Accounting(service, record, self._journal, lease.fence)

    @property
    def instances(self) -> int:
        """Function instances it has now; of what jobs share, its part."""
        if self._platform is None:
            return 0
        return math.ceil(sum(instance.share for instance in self._platform.instances()))

    async def run(self) -> None:
        """Cancel it to end it at once; the job's state is then somebody else's to say."""
        try:
            async with self._leases.keeping(self._lease):
                try:
                    outcome = await self._drive()
                except Exception as raised:  # the boundary of the job: its end must be on record
                    error = first_error(raised)
                    if isinstance(error, LostLeaseError | JobEndedError):
                        raise
                    await self._failed(error)
                else:
                    await self._ended(outcome)
        except* LostLeaseError:
            self._service.metrics.lease_lost()
            _log.info("job %s is driven by another replica now", self._record.id)
        except* JobEndedError:
            _log.info("job %s was ended meanwhile", self._record.id)
        except* (TransientError, CapacityError) as group:
            _log.warning("job %s is left as it is: %s", self._record.id, first_error(group))
        except* Exception:  # the boundary of the task: other jobs go on
            _log.exception("job %s met a defect", self._record.id)
            await asyncio.sleep(DEFECT_PAUSE_S)

    async def _drive(self) -> Outcome:
        service, record = self._service, self._record
        if record.state == "queued":
            service.metrics.waited(max(0.0, time.time() - record.entered["queued"].at))
        taken = await self._recorded(
            service.registry.take_up(record.tenant, self.job, self._lease.fence)
        )
        if taken.state == "pausing":  # whoever was to do it is gone
            self.control.ask("pause", taken.reason or "")
        whole = merge(record.spec, await service.registry.secrets(self.job))
        ledger = new_ledger(deployments(whole))
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            await enter(self._logging(whole))
            spec = await enter(service.inputs.materialised(whole, record.tenant, self.job))
            if not await self._journal.exists():
                await self._journal.create(dump_spec(spec))
            await enter(recording(service.redis, self.job, self._lease.fence, ledger))
            await enter(self._accounting.running())
            trackers = await enter(self._tracking(whole))  # paths here are nobody else's concern
            wanted = Wanted(
                job=self.job,
                deployments=deployments(spec),
                ledger=ledger,
                kinds=kinds(record.tenant, spec),
                together=used_together(spec),
                logged_to_s=await service.logs.last_at(self.job),
            )
            self._platform = await enter(self._host.platform(wanted))
            self.control.attach(self._platform.bound)
            execution = Execution(
                id=self.job,
                spec=spec,
                platform=self._platform,
                ledger=ledger,
                journal=self._journal,
                objects=service.objects,
                export_folder=None,
                observe=self._observing(trackers),
                keep_samples=lambda data: SampleKeeper(service.objects, self.job, spec, data),
                control=self.control,
                around=self._accounting.attach,
            )
            trackers.ended("interrupted")  # unless we learn otherwise: it will go on
            try:
                outcome = await self._reporting(execute(execution, Known()))
            except* Exception as raised:
                if self._is_final(first_error(raised)):
                    trackers.ended("failed")
                raise
            trackers.ended(outcome.status)
        await self._reporter.flush()
        return outcome

    def _logging(self, spec: JobSpec) -> AbstractAsyncContextManager[None]:
        def slices() -> list[LogSlice]:
            return [] if self._platform is None else self._platform.log_slices()

        def drop(read: Sequence[LogSlice]) -> None:
            if self._platform is not None:
                self._platform.drop_logs(read)

        redact = partial(redacted, secrets=secret_texts(spec))
        logs, fence = self._service.logs, self._lease.fence
        return tailing(logs, self.job, fence, slices=slices, drop=drop, redact=redact)

    def _tracking(self, spec: JobSpec) -> AbstractAsyncContextManager[Trackers]:
        settings, name = self._service.settings, f"trackers/{self.job}"
        folder = self._service.objects.local_path(name) or settings.file(name)
        place = Place(
            folder=folder,
            logs=settings.file("logs", name),
            trusted=False,
            allowed_urls=settings.allowed_urls,
        )

        def warn(text: str) -> None:
            self._reporter.say(JobEvent(type="notice", level="warning", message=text))

        return tracking(spec, self.job, place, warn)

    def _observing(self, trackers: Trackers) -> Observer:
        def observe(event: Event) -> None:
            trackers.observe(event)
            self._reporter.observe(event)

        return observe

    async def _reporting(self, running: Coroutine[Any, Any, Outcome]) -> Outcome:
        async with asyncio.TaskGroup() as group:
            reporting = group.create_task(self._reporter.run(), name="report")
            try:
                return await running
            finally:
                reporting.cancel()

    async def _ended(self, outcome: Outcome) -> None:
        heeded = self.control.heeded
        if outcome.status == "succeeded":
            await self._move("succeeded", outcome.reason)
        elif heeded is None or outcome.reason != heeded.reason:  # its budget is spent
            await self._move("paused", outcome.reason)
        else:
            # It may have been resumed while its last step ended: then it is taken up again.
            moved = await self._move("paused", outcome.reason, only_from="pausing")
            if moved.state == "running" and heeded.stop == "yield":
                await self._move("queued", outcome.reason, only_from="running")

    async def _failed(self, error: BaseException) -> None:
        """Put it back, or give it up."""
        known = as_told(error) if isinstance(error, RlhflessError) else _defect(error)
        if not isinstance(error, RlhflessError):
            _log.error("job %s met a defect", self._record.id, exc_info=error)
        known.detail = self._service.inputs.shown(known.detail)
        known.hint = None if known.hint is None else self._service.inputs.shown(known.hint)
        if self._is_final(error):
            problem = known.to_problem()
            problem.pop("trace", None)
            if problem["title"] == UserError.title:  # nobody sent a request
                problem["title"] = FAULT
            await self._move("failed", known.detail, error=problem)
            return
        attempts = self._failures()
        wait_s = min(LONGEST_WAIT_S, 2.0 ** (attempts - 1))
        _log.warning("job %s is tried again in %g s: %s", self._record.id, wait_s, known.detail)
        self._service.metrics.job_retried()
        self._reporter.say(
            JobEvent(type="setback", level="warning", message=known.detail, data={"wait_s": wait_s})
        )
        await self._reporter.flush()
        again = Setback(time.time() + wait_s, attempts, known.detail)
        fence = self._lease.fence
        await self._recorded(
            self._service.registry.put_back(self._record.tenant, self.job, again, fence=fence)
        )

    def _is_final(self, error: BaseException) -> bool:
        """Whether the job fails by it; otherwise it is tried again, or somebody else's."""
        if isinstance(error, LostLeaseError | JobEndedError):
            return False
        known = error if isinstance(error, RlhflessError) else _defect(error)
        family = next((f for f in ATTEMPTS if isinstance(known, f)), None)
        return family is None or self._failures() >= ATTEMPTS[family]

    def _failures(self) -> int:
        """This one, and those before it without a step between."""
        setback = self._record.setback
        return 1 if setback is None or self._reporter.made_steps else setback.attempts + 1

    async def _move(
        self,
        state: State,
        reason: str | None = None,
        *,
        only_from: State | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> JobRecord:
        moved = await self._recorded(
            self._service.registry.move(
                self._record.tenant,
                self.job,
                state,
                reason,
                fence=self._lease.fence,
                only_from=only_from,
                error=error,
            )
        )
        if state in FINAL:
            self._service.metrics.job_ended(state)
        return moved

    async def _recorded(self, change: Awaitable[JobRecord]) -> JobRecord:
        try:
            return await change
        except LostLeaseError:
            raise
        except (ConflictError, NotFoundError) as error:  # it may be removed as well
            raise JobEndedError(f"job {self.job} has ended") from error


def _defect(error: BaseException) -> InternalError:
    return InternalError(f"{type(error).__name__}: {error}")
