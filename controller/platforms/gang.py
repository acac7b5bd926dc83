"""Training over several nodes: one instance, a Job whose pods Kueue admits together.

The Job is made at the first call or ``scale`` and taken away after the scale-down delay without
work. Calls go straight to the leader's pod, once all pods run and it says that its group is whole;
nothing stands between that would bound their time. When any pod ends, whatever the reason, the gang
is broken: its calls raise ``TransientError``, it is taken away, and the next call has another made.
What it had committed stays.

A Job bears its holder's name, as Knative's Services do: who drives the training job now takes over
a gang that runs, and who has lost the job leaves it alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any

from controller.ledger import Ledger
from controller.platforms.base import Deployment, Instance
from controller.platforms.gang_jobs import GangJobs
from controller.platforms.gang_life import FUNCTION, Gang
from controller.platforms.gang_status import JobView, Member, read_job, read_member
from controller.platforms.knative_calls import (
    NotAdmittedError,
    Terms,
    call,
    first_frame,
    new_client,
    poke,
)
from controller.platforms.knative_manifest import as_here, url_of
from controller.platforms.knative_settings import KnativeSettings, duration_s
from controller.platforms.knative_status import Trouble
from controller.platforms.kube import JOBS, PODS, Kind, Kube
from controller.platforms.local_logs import LogSlice
from rlhfless.errors import CapacityError, InternalError, RlhflessError, TransientError
from rlhfless.messages import ROUTES, AnyFrame, FunctionName, Request, SteerRequest

SILENCE_S = 60.0
"""A stream that says nothing for so long, though heartbeats are due every five seconds, is broken.
"""
LONGEST_CALL_S = 86400.0
FALSE_STARTS = 2
"""So many gangs in a row that end of themselves before they are ready: there is no use in more."""
_CHECK_S = 0.5
_READY_S = 5.0
_LEAVE_S = 60.0
_RETRY_PAUSE_S = 0.05
_LONGEST_RETRY_PAUSE_S = 2.0
_log = logging.getLogger(__name__)


class GangPlatform:
    """``async with GangPlatform(...) as platform``; of training alone. ``job``, ``token`` and
    ``kube``: as of ``KnativePlatform``."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        job: str,
        ledger: Ledger,
        kube: Kube,
        settings: KnativeSettings,
        token: str,
    ) -> None:
        assert deployment.function == FUNCTION
        self.job = job
        self.deployment = as_here(deployment, settings, one_pod=False)
        self._jobs = GangJobs(kube, settings, job, self.deployment, uuid.uuid4().hex)
        self._ledger = ledger
        self._client = new_client()
        self._terms = Terms(token, LONGEST_CALL_S, SILENCE_S)
        self._start_timeout_s = float(duration_s(settings.knative.progress_deadline))
        self._kube, self._settings = kube, settings
        self._told_jobs: dict[str, JobView] = {}
        self._told_members: list[Member] = []
        self._gangs: dict[str, Gang] = {}
        self._current: Gang | None = None
        self._making = ""  # name of a gang that may have been made already
        self._waiting: deque[asyncio.Future[Gang]] = deque()
        self._owed = False  # asked for by ``scale`` and not yet there
        self._most = 1
        self._false_starts = 0
        self._barren_since_s: float | None = None
        self._idle_since_s: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: RlhflessError | None = None
        self._changed = asyncio.Event()
        self._acting = asyncio.Lock()
        self._closing = False

    async def __aenter__(self) -> GangPlatform:
        """Takes over the gang that an earlier controller of the job has left, if one runs."""
        try:
            for view in await self._jobs.take_over():
                self._current = self._new(view.name)
        except BaseException:
            await self.close()
            raise
        for work in (self._follow(JOBS), self._follow(PODS), self._run()):
            self._begin(work)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- the platform's five methods --------------------------------------------------------------

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame, None]:
        self._known(ROUTES[type(request)][0])
        loop = asyncio.get_running_loop()
        give_up_s, pause_s, again = loop.time() + self._start_timeout_s, _RETRY_PAUSE_S, False
        while True:
            gang = await self._acquire(first=again)
            try:
                async with contextlib.aclosing(self._frames(gang, request)) as frames:
                    async for frame in frames:
                        yield frame
                return
            except NotAdmittedError as refused:
                if loop.time() > give_up_s:
                    raise refused.error from None
                gang.ready, again = False, True  # asked anew whether it is
            except TransientError:
                gang.ready = False  # likewise, by the next call
                raise
            finally:
                self._release(gang)
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_RETRY_PAUSE_S, 2 * pause_s)

    async def steer(self, request: SteerRequest) -> bool:  # noqa: ARG002 (the Protocol's)
        """No call of training takes changes."""
        return False

    async def scale(self, function: FunctionName, count: int) -> None:
        """What is above ``count`` goes when the scale-down delay is over."""
        self._known(function)
        self._owed = count > 0 and (self._current is None or not self._current.ready)
        self._changed.set()

    def instances(self) -> tuple[Instance, ...]:
        found = (gang.instance for gang in self._gangs.values())
        return tuple(instance for instance in found if instance is not None)

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._fail_waiting(CapacityError("the platform is closing"))
        try:
            async with self._acting:  # a gang that is being made must be there to be deleted
                ours = await self._jobs.delete_all()
            if ours and self._tasks:
                await self._until_gone()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for gang in self._gangs.values():
                gang.close()
            self._gangs.clear()
            await self._client.aclose()

    # --- for who drives several jobs --------------------------------------------------------------

    def bound(self, function: FunctionName, most: int) -> None:
        """0: calls wait, and the gang goes when the scale-down delay is over."""
        self._known(function)
        self._most = most
        self._changed.set()

    def log_slices(self) -> list[LogSlice]:
        """None: what pods write is kept by the cluster's own log keeping."""
        return []

    def drop_logs(self, parts: Iterable[LogSlice]) -> None:
        """There are none."""

    # --- calls ------------------------------------------------------------------------------------

    async def _acquire(self, *, first: bool) -> Gang:
        """The gang, when it is ready and has room."""
        if self._closing:
            raise CapacityError("the platform is closing")
        if self._failure is not None:
            raise self._failure
        waiter: asyncio.Future[Gang] = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        self._changed.set()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release(waiter.result())
            raise

    def _release(self, gang: Gang) -> None:
        gang.calls -= 1
        gang.book()
        self._changed.set()

    async def _frames(self, gang: Gang, request: Request) -> AsyncGenerator[AnyFrame, None]:
        """Of one call, for as long as the gang is whole."""
        stream = call(self._client, gang.url, request, self._terms, lambda _: None)
        broken = asyncio.create_task(gang.broken.wait())
        coming: asyncio.Task[AnyFrame | None] | None = None
        try:
            while True:
                coming = asyncio.create_task(first_frame(stream))
                await asyncio.wait({coming, broken}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    raise TransientError(f"the gang {gang.name} broke: {gang.why}")
                frame = coming.result()
                if frame is None:
                    return
                yield frame
        finally:
            ending = [task for task in (coming, broken) if task is not None]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            await stream.aclose()

    def _known(self, function: FunctionName) -> None:
        if function != FUNCTION:
            raise InternalError(f"the function {function} is not deployed here") from None

    # --- what the cluster tells -------------------------------------------------------------------

    async def _follow(self, kind: Kind) -> None:
        following = self._kube.follow(kind, self._settings.namespace, self._jobs.labels)
        async with contextlib.aclosing(following) as snapshots:
            async for snapshot in snapshots:
                if kind is JOBS:
                    self._told_jobs = {name: read_job(job) for name, job in snapshot.items()}
                else:
                    found = map(read_member, snapshot.values())
                    self._told_members = [member for member in found if member is not None]
                for gang in self._gangs.values():
                    gang.take(self._told_jobs, self._told_members)
                self._changed.set()

    # --- what is done about it --------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                async with self._acting:
                    await self._turn()
            except TransientError as error:
                _log.warning("%s; trying again", error.detail)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await self._changed.wait()

    async def _turn(self) -> None:
        for gang in list(self._gangs.values()):
            if gang.broken.is_set() and not gang.retired:
                self._broke(gang)
            if gang.retired and not gang.deleted:
                gang.deleted = await self._jobs.delete(gang.name)
            if gang.is_gone:
                gang.close()
                del self._gangs[gang.name]
        if self._closing:
            return
        if self._current is None and self._wanted:
            await self._make()
        current = self._current
        if current is not None and not current.ready and current.address:
            await self._ask(current)
        self._serve()
        await self._judge()
        self._rest()

    @property
    def _wanted(self) -> bool:
        return self._most > 0 and (self._owed or bool(self.num_waiting))

    @property
    def num_waiting(self) -> int:
        return sum(not waiter.done() for waiter in self._waiting)

    def _new(self, name: str) -> Gang:
        now_s = asyncio.get_running_loop().time
        gang = self._gangs[name] = Gang(name, self._jobs.size.nodes, self._ledger, now_s)
        gang.take(self._told_jobs, self._told_members)  # it may have been told of already
        return gang

    async def _make(self) -> None:
        if not self._making:
            self._making = self._jobs.new_name()
        await self._jobs.make(self._making)  # again under this name, if it is not known to be there
        self._current, self._making = self._new(self._making), ""

    def _broke(self, gang: Gang) -> None:
        _log.info("the gang %s broke: %s", gang.name, gang.why)
        if not gang.was_ready and gang.fault is not None:
            self._false_starts += 1
            if self._false_starts >= FALSE_STARTS:
                self._false_starts, self._owed = 0, False
                self._fail_waiting(gang.fault.error())
        self._retire(gang)

    def _retire(self, gang: Gang) -> None:
        gang.retired, gang.ready = True, False
        if self._current is gang:
            self._current = None
        self._changed.set()

    async def _ask(self, gang: Gang) -> None:
        """Whether its leader is ready, which it is once all ranks are there."""
        url = url_of(gang.address)
        if not await poke(self._client, url, _READY_S) and gang.address:
            gang.url, gang.ready, gang.was_ready = url, True, True
            self._owed, self._false_starts = False, 0
            gang.book()

    def _serve(self) -> None:
        gang = self._current
        if gang is None or not gang.ready or not gang.address or not self._most:
            return
        while self._waiting and gang.calls < self.deployment.concurrency:
            waiter = self._waiting.popleft()
            if not waiter.done():
                gang.calls += 1
                gang.book()
                waiter.set_result(gang)

    async def _judge(self) -> None:
        """End the waiting for what does not come."""
        gang, now_s = self._current, asyncio.get_running_loop().time()
        if gang is None or gang.ready or not self._wanted:
            self._barren_since_s = None
            return
        if self._barren_since_s is None:
            self._barren_since_s = now_s
        troubles = gang.troubles()
        fatal = next((trouble for trouble in troubles if trouble.fatal), None)
        if fatal is not None:
            self._owed = False
            self._fail_waiting(fatal.error())
        elif now_s - self._barren_since_s >= self._start_timeout_s:
            troubles = troubles or await self._jobs.queue_troubles(gang.name, gang.job)
            self._barren_since_s, self._owed = None, False
            self._fail_waiting(self._late(troubles))

    def _late(self, troubles: list[Trouble]) -> CapacityError:
        why = "; ".join(dict.fromkeys(trouble.detail for trouble in troubles))
        detail = f"no gang for training was ready within {self._start_timeout_s:g} s"
        hint = next((trouble.hint for trouble in troubles if trouble.hint), None)
        return CapacityError(f"{detail}: {why}" if why else detail, hint=hint)

    def _rest(self) -> None:
        """Let the gang go that has had nothing to do for long enough."""
        gang, now_s = self._current, asyncio.get_running_loop().time()
        if gang is None or gang.calls or self._wanted:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s >= self.deployment.idle_timeout_s:
            self._idle_since_s = None
            self._retire(gang)

    async def _until_gone(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                while self._gangs and self._failure is None:  # noqa: ASYNC110 (``_run`` clears)
                    await asyncio.sleep(_RETRY_PAUSE_S)

    # --- parts ------------------------------------------------------------------------------------

    def _fail_waiting(self, error: RlhflessError) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() or (error := task.exception()) is None:
                return
            if not isinstance(error, RlhflessError):
                _log.error("following the cluster failed", exc_info=error)
                error = InternalError(f"following the cluster failed: {error}")
            self._failure = error
            self._fail_waiting(error)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
