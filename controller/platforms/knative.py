"""The Knative platform: function instances as pods of Knative Services, one Service a function of a
job, or of all jobs that use the same model.

Entering applies the Services (``knative_manifest``), which takes no node yet; calls go to the URLs
that their status names, when a pod has room (``knative_pool``); what runs is learnt by following
the pods (``knative_pods``). Leaving deletes the Services and waits for their pods to end. What a
controller that crashed has left is taken over by whoever drives the job next, since names follow
from the job, or removed by ``knative_garbage``.

A Service bears its holder's name: a controller that has lost a job to another one finds it changed
and leaves it alone. Those that jobs share bear one for each job (``knative_sharing``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator, Coroutine, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from controller.ledger import Ledger
from controller.platforms.base import Deployment, Instance
from controller.platforms.knative_calls import (
    NotAdmittedError,
    Terms,
    call,
    hand_over,
    new_client,
    steer,
)
from controller.platforms.knative_garbage import delete_held
from controller.platforms.knative_logs import LINGER_S, PodLogs
from controller.platforms.knative_manifest import (
    SHARED,
    Lane,
    as_here,
    job_labels,
    lanes,
    release_labels,
    service_manifest,
    shared_manifest,
    url_of,
)
from controller.platforms.knative_owner import owner_reference
from controller.platforms.knative_pods import Pods
from controller.platforms.knative_pool import KnativePool, Route
from controller.platforms.knative_settings import KnativeSettings, duration_s
from controller.platforms.knative_sharing import Mark, leave, marks_of
from controller.platforms.knative_status import read_pod, read_service
from controller.platforms.kube import MANAGER, PODS, SERVICES, Kind, Kube, Object
from controller.platforms.local_logs import LogFiles, LogSlice
from controller.platforms.newest import newest
from rlhfless.errors import CapacityError, InternalError, RlhflessError
from rlhfless.messages import ROUTES, AnyFrame, FunctionName, Request, SteerRequest

SILENCE_S = 60.0
"""A stream that says nothing for so long, though heartbeats are due every five seconds, is broken.
"""
SHAREABLE: tuple[FunctionName, ...] = ("reward", "reference")
"""Functions whose model does not change while a job runs."""
_RETRY_PAUSE_S = 0.05
_LONGEST_RETRY_PAUSE_S = 2.0
_CHECK_S = 0.5
LOOK_S = 1e-4
"""Between two looks at all pods, for each of them: 0.1 s of 1,000, which take 10 ms to look at.
While they start the API server tells of something new every few milliseconds."""
_LEAVE_S = 60.0
"""How long to wait for pods to end; Kubernetes ends them in any case."""
_log = logging.getLogger(__name__)


class KnativePlatform:
    """``async with KnativePlatform(...) as platform``. ``job`` names what the functions belong to;
    ``token`` is what they ask of their callers; ``kube`` stays the caller's to close. ``logs``:
    where to put what pods say, if anybody takes it (``log_slices``); ``logged_to_s``: Unix time up
    to which that of the job has been kept; ``kinds``: by function, what jobs must have in common to
    use one Service together."""

    def __init__(
        self,
        deployments: Sequence[Deployment],
        *,
        job: str,
        ledger: Ledger,
        kube: Kube,
        settings: KnativeSettings,
        token: str,
        logs: LogFiles | None = None,
        logged_to_s: float = 0.0,
        kinds: Mapping[FunctionName, Hashable] | None = None,
    ) -> None:
        self.job = job
        self.holder = uuid.uuid4().hex
        self._mark = Mark(job, self.holder)
        self._kinds = {f: kind for f, kind in (kinds or {}).items() if f in SHAREABLE}
        self._deployments = [as_here(deployment, settings) for deployment in deployments]
        self._kube = kube
        self._settings = settings
        self._client = new_client()
        self._terms = Terms(token, settings.knative.timeout_seconds, SILENCE_S)
        self._start_timeout_s = float(duration_s(settings.knative.progress_deadline))
        self._pools: dict[FunctionName, KnativePool] = {}
        self._routes: dict[str, Route] = {}
        self._functions: dict[str, FunctionName] = {}
        self._pods = Pods(self._functions, ledger, lambda: asyncio.get_running_loop().time())
        self._logs: PodLogs | None = None
        if logs is not None:
            self._logs = PodLogs(
                kube,
                settings.namespace,
                job_labels(settings, job),
                logs,
                name=self.holder[:8],
                since_s=logged_to_s,
            )
        self._told: dict[bool, list[Object]] = {}  # our own pods, and shared ones
        self._told_to_go: set[str] = set()
        self._serving: dict[tuple[str, str], str] = {}  # by job and call: the pod's name
        self._tasks: set[asyncio.Task[object]] = set()
        self._failure: RlhflessError | None = None
        self._changed = asyncio.Event()
        self._closing = False
        for deployment in self._deployments:
            self._pools[deployment.function] = self._new_pool(deployment)
        self._sharing = {route.shared for route in self._routes.values()}

    def _new_pool(self, deployment: Deployment) -> KnativePool:
        shared, routes = deployment.function in self._kinds, []
        pods = self._settings.functions[deployment.function]
        for lane in lanes(deployment, pods, shared=shared):
            name = self._manifest(deployment, lane, None)["metadata"]["name"]
            route = Route(name, lane, self._pods, deployment.concurrency, shared=shared)
            self._routes[route.name] = route
            self._functions[route.name] = deployment.function
            routes.append(route)
        start_s, request_s = self._start_timeout_s, self._terms.request_s
        return KnativePool(deployment, routes, self._client, start_s, request_s)

    def _manifest(self, deployment: Deployment, lane: Lane, owner: Object | None) -> Object:
        kind = self._kinds.get(deployment.function)
        if kind is None:
            return service_manifest(self._settings, self.job, deployment, lane, self.holder, owner)
        return shared_manifest(self._settings, kind, deployment, lane, self._mark.annotation, owner)

    async def __aenter__(self) -> KnativePlatform:
        """Apply the Services; returns when the API server has them, before they are ready."""
        try:
            owner = await owner_reference(self._kube, self._settings)
            async with asyncio.TaskGroup() as group:
                for pool in self._pools.values():
                    for route in pool.routes:
                        group.create_task(self._apply(pool.deployment, route, owner))
        except BaseException as error:
            await self.close()
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        for shared in self._sharing:
            self._begin(self._follow(SERVICES, shared))
            self._begin(self._follow(PODS, shared))
        self._begin(self._check())
        return self

    async def _apply(self, deployment: Deployment, route: Route, owner: Object | None) -> None:
        manifest = self._manifest(deployment, route.lane, owner)
        manager = self._mark.manager if route.shared else MANAGER
        made = await self._kube.apply(SERVICES, manifest, self._settings.namespace, manager)
        if route.shared:
            self._pods.share(route.name, len(marks_of(made)))

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- the platform's five methods --------------------------------------------------------------

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame, None]:
        pool = self._pool(ROUTES[type(request)][0])
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._start_timeout_s
        pause_s = _RETRY_PAUSE_S
        again = False
        while True:
            if self._closing:
                raise CapacityError("the platform is closing")
            if self._failure is not None:
                raise self._failure
            route = await pool.acquire(first=again)
            sent = _Sent(self, pool, route, (request.call.job, request.call.id))
            try:
                stream = call(self._client, route.url, request, self._terms, sent.admitted)
                async with contextlib.aclosing(stream) as frames:
                    async for frame in frames:
                        yield frame
                return
            except NotAdmittedError as refused:
                # It drains, ends a call that was aborted, or was scaled down: no fault of this one.
                if loop.time() > give_up_s:
                    raise refused.error from None
                again = True
            finally:
                sent.ended()
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_RETRY_PAUSE_S, 2 * pause_s)

    async def steer(self, request: SteerRequest) -> bool:
        """Knative cannot address pods, so this goes to the pod itself, as the chart's network
        policy lets the controller do."""
        pod = self._serving.get((request.call.job, request.target))
        url = self._own_url(pod) if pod else ""
        return bool(url) and await steer(self._client, url, request, self._terms)

    def _own_url(self, pod: str) -> str:
        """Past Knative; empty where that is not to be."""
        address = self._pods.address(pod) if self._settings.knative.direct_steering else ""
        return url_of(address) if address else ""

    async def scale(self, function: FunctionName, count: int) -> None:
        """What is above ``count`` goes when Knative's scale-down delay is over."""
        pool = self._pool(function)
        if not self._closing:
            pool.warm = count
            pool.serve()

    def instances(self) -> tuple[Instance, ...]:
        return self._pods.instances()

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        for pool in self._pools.values():
            await pool.close()
        gone: list[bool] = []
        try:
            gone += [await self._leave(route) for route in self._routes.values()]
            if not self._settings.knative.direct_steering:
                await self._client.aclose()  # pods with requests would stay as long as they may
            if self._tasks and any(gone):
                await self._until_gone()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._logs is not None:
                await self._logs.close(LINGER_S if any(gone) else 0.0)
            self._pods.close()
            await self._client.aclose()

    async def _leave(self, route: Route) -> bool:
        """Whether its Service is gone."""
        namespace = self._settings.namespace
        if not route.shared:
            return await delete_held(self._kube, namespace, route.name, self.holder)
        gone = await leave(self._kube, namespace, route.name, self._mark)
        if not gone:  # others go on with it
            self._pods.forget(route.name)
        return gone

    # --- for who drives several jobs --------------------------------------------------------------

    def bound(self, function: FunctionName, most: int) -> None:
        """Have no more than ``most`` instances at work until told otherwise; 0: calls wait. What
        is idle then goes when Knative's scale-down delay is over."""
        pool = self._pool(function)
        pool.most = min(most, pool.deployment.max_instances)
        pool.serve()

    def log_slices(self) -> list[LogSlice]:
        """What the job's pods said, those that it shares while it alone uses them."""
        return [] if self._logs is None else self._logs.slices()

    def drop_logs(self, parts: Iterable[LogSlice]) -> None:
        """These are read."""
        if self._logs is not None:
            self._logs.drop(parts)

    # --- what the cluster tells -------------------------------------------------------------------

    async def _follow(self, kind: Kind, shared: bool) -> None:
        names = [name for name, route in self._routes.items() if route.shared]
        own = job_labels(self._settings, self.job)
        labels = {**release_labels(self._settings), SHARED: names} if shared else own
        following = self._kube.follow(kind, self._settings.namespace, labels)
        pacing = newest(following, lambda snapshot: LOOK_S * len(snapshot))
        async with contextlib.aclosing(pacing) as snapshots:
            async for snapshot in snapshots:
                if kind is PODS:
                    self._told[shared] = list(snapshot.values())
                    pods = list(chain.from_iterable(self._told.values()))
                    self._pods.update(read_pod(pod) for pod in pods)
                    self._rescue()
                    if self._logs is not None and self._told.keys() == self._sharing:
                        self._logs.update(pods)
                else:
                    self._take_services(snapshot, shared)
                self._wake()

    def _rescue(self) -> None:
        """Knative keeps SIGTERM from a function while requests run, until its node is gone with
        them; so who can go on elsewhere hears it from us, and when we close everybody."""
        leaving = self._pods.leaving()
        for pod in leaving.keys() - self._told_to_go:
            if self._closing or leaving[pod] == "rollout":
                self._told_to_go.add(pod)
                if url := self._own_url(pod):
                    self._begin(hand_over(self._client, url, self._terms))

    def _take_services(self, snapshot: dict[str, Object], shared: bool) -> None:
        for name, route in self._routes.items():
            if route.shared != shared:
                continue
            if name in snapshot:
                route.view = read_service(snapshot[name])
                if shared and not self._closing:
                    marks = marks_of(snapshot[name])
                    self._pods.share(name, len(marks) or 1)
                    if self._logs is not None:
                        self._logs.share(name, alone=marks == [self._mark])
            elif route.view.url is not None and not self._closing:
                self._fail(CapacityError(f"somebody deleted the Knative service {name}"))

    def _wake(self) -> None:
        self._changed.set()
        if not self._closing:
            for pool in self._pools.values():
                pool.serve()

    async def _check(self) -> None:
        while True:
            for pool in self._pools.values():
                pool.check()
            await asyncio.sleep(_CHECK_S)

    async def _until_gone(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                while self._pods.num_left and self._failure is None:
                    self._changed.clear()
                    await self._changed.wait()

    # --- parts ------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        def ended(task: asyncio.Task[object]) -> None:
            self._tasks.discard(task)
            if task.cancelled() or (error := task.exception()) is None:
                return
            if not isinstance(error, RlhflessError):
                _log.error("following the cluster failed", exc_info=error)
                error = InternalError(f"following the cluster failed: {error}")
            self._fail(error)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)

    def _fail(self, error: RlhflessError) -> None:
        self._failure = error
        for pool in self._pools.values():
            pool.fail_waiting(error)
        self._changed.set()

    def _pool(self, function: FunctionName) -> KnativePool:
        try:
            return self._pools[function]
        except KeyError:
            raise InternalError(f"the function {function} is not deployed here") from None

    def began(self, name: tuple[str, str], pod: str) -> bool:
        """A pod has taken a call; False: it is none that we know."""
        self._serving[name] = pod
        return self._pods.began(pod)

    def ended(self, name: tuple[str, str], pod: str) -> None:
        if self._serving.get(name) == pod:
            del self._serving[name]
        self._pods.ended(pod)


class _Sent:
    """A call on its way: in the pool's count until its pod tells its name, then in the pod's."""

    def __init__(
        self, platform: KnativePlatform, pool: KnativePool, route: Route, name: tuple[str, str]
    ) -> None:
        self._platform, self._pool, self._route, self._name = platform, pool, route, name
        self._pod: str | None = None

    def admitted(self, pod: str) -> None:
        if self._platform.began(self._name, pod):
            self._pod = pod
            self._route.unplaced -= 1

    def ended(self) -> None:
        if self._pod is not None:
            self._platform.ended(self._name, self._pod)
        self._pool.release(self._route, placed=self._pod is not None)
