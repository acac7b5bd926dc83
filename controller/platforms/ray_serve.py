"""The Ray platform: function instances as replicas of Ray Serve, one application a function.

Entering makes the applications, which takes no node yet; calls go through Serve's proxy and wait in
its router, by which Serve brings replicas up and lets them go (``ray_pool``); what runs is learnt
by asking the agent (``ray_cluster``, ``ray_replicas``). Leaving removes the applications and waits
for their replicas to end. What a controller that crashed has left is taken over by whoever drives
the job next, since names follow from the job, or removed by ``ray_cluster.collect``.

An application bears its holder's name: a controller that has lost a job to another one leaves it
alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import uuid
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from controller.ledger import Ledger
from controller.platforms.base import Deployment, Instance
from controller.platforms.knative_calls import (
    NotAdmittedError,
    Terms,
    call,
    first_frame,
    hand_over,
    steer,
)
from controller.platforms.knative_settings import duration_s
from controller.platforms.local_logs import LogSlice
from controller.platforms.ray_cluster import LOST_S, RayCluster
from controller.platforms.ray_pool import RayPool
from controller.platforms.ray_replicas import Replica, Replicas
from controller.platforms.ray_settings import RaySettings, as_here, resources_of
from rlhfless.errors import CapacityError, InternalError, RlhflessError
from rlhfless.messages import ROUTES, AnyFrame, FunctionName, Request, SteerRequest
from rlhfless.ray_apps import RayApp, RayAppState, RayFunction, RayState, agent_name, agent_route

SILENCE_S = 60.0
"""A stream that says nothing for so long, though heartbeats are due every five seconds, is broken.
"""
_LONGEST_CALL_S = 86400.0
"""Serve bounds no call's time, unless its operator sets ``request_timeout_s``."""
_DRAIN_S = 20.0
_LEAVE_S = 60.0
_RETRY_PAUSE_S = 0.05
_LONGEST_RETRY_PAUSE_S = 2.0
_CHECK_S = 0.5
_log = logging.getLogger(__name__)


class RayServePlatform:
    """``async with RayServePlatform(...) as platform``. ``job`` names what the functions belong to;
    ``cluster`` stays the caller's to close. ``apps``: by function ``module:create``, instead of its
    own code; ``log_folder``: where replicas on this machine write."""

    def __init__(
        self,
        deployments: Sequence[Deployment],
        *,
        job: str,
        ledger: Ledger,
        cluster: RayCluster,
        settings: RaySettings,
        apps: Mapping[FunctionName, str] | None = None,
        log_folder: str = "",
    ) -> None:
        self.job = job
        self.holder = uuid.uuid4().hex
        self._cluster = cluster
        self._settings = settings
        self._apps = apps or {}
        self._log_folder = log_folder
        token = cluster.token_of(job)
        self._terms = Terms(token, _LONGEST_CALL_S, SILENCE_S, frozenset({500}))
        self._start_timeout_s = float(duration_s(settings.ray.start_timeout))
        self._pools: dict[FunctionName, RayPool] = {}
        for deployment in (as_here(deployment, settings) for deployment in deployments):
            here = settings.functions[deployment.function]
            resources = resources_of(here, deployment.workers)
            self._pools[deployment.function] = RayPool(
                deployment, resources, self._start_timeout_s, elastic=cluster.elastic
            )
        self._replicas = Replicas(ledger, lambda: asyncio.get_running_loop().time())
        self._largest: dict[str, float] = {}
        self._serving: dict[tuple[str, str], str] = {}  # by job and call: the replica's name
        self._stack = contextlib.AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._told = asyncio.Event()
        self._made: set[FunctionName] = set()
        self._left: set[FunctionName] = set()  # those of our applications that the cluster has
        self._failure: RlhflessError | None = None
        self._closing = False

    async def __aenter__(self) -> RayServePlatform:
        """Make the applications; returns when Serve has them, before they can be called."""
        try:
            for function in self._pools:
                self._made.add(function)
                await self._cluster.deploy(self._app(function), take=True)
        except BaseException:
            await self.close()
            raise
        await self._stack.enter_async_context(self._cluster.following(self._take))
        self._begin(self._tend())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- the platform's five methods --------------------------------------------------------------

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame, None]:
        function = ROUTES[type(request)][0]
        pool = self._pool(function)
        url = self._cluster.serve_url + self._route(function)
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._start_timeout_s
        pause_s = _RETRY_PAUSE_S
        again = False
        while True:
            if self._closing:
                raise CapacityError("the platform is closing")
            if self._failure is not None:
                raise self._failure
            await pool.enter(first=again)
            sent = _Sent(self, function, (request.call.job, request.call.id))
            try:
                stream = call(self._cluster.client, url, request, self._terms, sent.admitted)
                async with contextlib.aclosing(stream) as frames:
                    frame = await pool.placed(first_frame(frames))
                    while frame is not None:
                        yield frame
                        frame = await anext(frames, None)
                return
            except NotAdmittedError as refused:
                # It drains, ends a call that was aborted, or its route is being made.
                if loop.time() > give_up_s:
                    raise refused.error from None
                again = True
            finally:
                sent.ended()
                pool.leave()
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_RETRY_PAUSE_S, 2 * pause_s)

    async def steer(self, request: SteerRequest) -> bool:
        """Serve cannot address replicas, so this goes to the replica's own port."""
        name = self._serving.get((request.call.job, request.target), "")
        replica = self._replicas.get(name)
        if replica is None or not self._settings.ray.direct_steering:
            return False
        url = f"http://{replica.address}"
        return await steer(self._cluster.client, url, request, self._terms)

    async def scale(self, function: FunctionName, count: int) -> None:
        """What is above ``count`` goes when it has been idle for its time."""
        pool = self._pool(function)
        if not self._closing:
            pool.warm = count
            self._wake.set()

    def instances(self) -> tuple[Instance, ...]:
        return self._replicas.instances()

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        for pool in self._pools.values():
            pool.fail(CapacityError("the platform is closing"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            force = not await self._end_calls()
            if await self._delete(force=force) and not await self._gone(_LEAVE_S):
                await self._delete(force=True)
                await self._gone(_LEAVE_S)
        finally:
            await self._stack.aclose()
            self._replicas.close()

    # --- for who drives several jobs --------------------------------------------------------------

    def bound(self, function: FunctionName, most: int) -> None:
        """Have no more than ``most`` instances at work until told otherwise; 0: calls wait. What is
        idle then goes when its time is over."""
        pool = self._pool(function)
        pool.most = min(most, pool.deployment.max_instances)
        pool.serve()

    def log_slices(self) -> list[LogSlice]:
        """None: what replicas write is kept by Ray, and in the run's folder on this machine."""
        return []

    def drop_logs(self, parts: Iterable[LogSlice]) -> None:
        """There are none."""

    # --- what the cluster tells -------------------------------------------------------------------

    def _take(self, state: RayState) -> None:
        self._largest = state.largest
        told = {app.name: app for app in state.apps}
        replicas = {}
        self._left = set()
        for function, pool in self._pools.items():
            pool.told = told.get(self._name(function), RayAppState(name=""))
            going = not pool.told.holder  # Serve forgets it first when an application goes
            if pool.told.name and (going or pool.told.holder == self.holder):
                self._left.add(function)
            replicas[function] = pool.told.replicas
        self._replicas.update(replicas)
        self._told.set()
        self._wake.set()

    async def _tend(self) -> None:
        """Tell Serve the least numbers, tell replicas that go to hand over, end vain waiting."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await self._wake.wait()
            self._wake.clear()
            for function, pool in self._pools.items():
                mine = self._replicas.of(function)
                try:
                    await self._set_floor(function, pool, mine)
                    if pool.check(mine, self._largest):
                        pool.attempt += 1
                        pool.told = RayAppState(name="")
                        await self._cluster.deploy(self._app(function), take=False)
                except RlhflessError as error:  # the cluster may be back in a moment
                    _log.warning("%s", error.detail)
            for replica in self._replicas.all():
                if replica.calls and not replica.drained and _must_hand_over(replica):
                    replica.drained = True
                    self._begin(self._drain(replica))
            if self._cluster.silent_s > LOST_S:
                for pool in self._pools.values():
                    pool.fail(CapacityError(f"the Ray cluster has been silent for {LOST_S:g} s"))

    async def _set_floor(
        self, function: FunctionName, pool: RayPool, replicas: list[Replica]
    ) -> None:
        count = min(pool.warm, pool.most)
        if sum(replica.phase == "ready" for replica in replicas) >= count:
            count = pool.warm = 0
        if count == pool.floor:
            return
        told, pool.floor = pool.floor, count
        try:
            await self._cluster.deploy(self._app(function), take=False)
        except RlhflessError:
            pool.floor = told  # so it is told again
            raise

    # --- ending -----------------------------------------------------------------------------------

    async def _drain(self, replica: Replica) -> None:
        """Have it hand back what it works on; a replica that cannot be reached ends as it ends."""
        if not await hand_over(self._cluster.client, f"http://{replica.address}", self._terms):
            _log.warning("%s does not hear that it shall end", replica.id)

    async def _end_calls(self) -> bool:
        """Whether all calls ended in order."""
        busy = [r for r in self._replicas.all() if r.calls and r.address]
        await asyncio.gather(*(self._drain(replica) for replica in busy))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while not all(pool.idle for pool in self._pools.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return all(pool.idle for pool in self._pools.values())

    async def _delete(self, *, force: bool) -> bool:
        """Whether any was ours to delete."""
        ours = False
        for function in self._made:
            try:
                ours |= await self._cluster.delete(self._name(function), self.holder, force=force)
            except RlhflessError as error:  # what is left is swept later, by its job's name
                _log.warning("%s is left on Ray: %s", self._name(function), error.detail)
        return ours

    async def _gone(self, within_s: float) -> bool:
        if not self._follows:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    self._told.clear()
                    self._cluster.look()
                    await self._told.wait()
                    if not self._left:
                        return True
        return False

    # --- parts ------------------------------------------------------------------------------------

    @property
    def _follows(self) -> bool:
        return self._take in self._cluster.followers

    def _app(self, function: FunctionName) -> RayApp:
        pool = self._pools[function]
        deployment = pool.deployment
        return RayApp(
            name=self._name(function),
            route=self._route(function),
            job=self.job,
            holder=self.holder,
            function=RayFunction(
                function=function,
                token=self._terms.token,
                app=self._apps.get(function, ""),
                threads=deployment.threads,
                accelerator=deployment.accelerator,
                concurrency=deployment.concurrency,
                workers=deployment.workers,
                engine=deployment.engine,
                log_folder=self._log_folder,
            ),
            resources=pool.resources,
            max_replicas=deployment.max_instances,
            warm=pool.floor,
            idle_s=deployment.idle_timeout_s,
            attempt=pool.attempt,
        )

    def _digest(self) -> str:
        return hashlib.sha256(self.job.encode()).hexdigest()[:10]

    def _name(self, function: FunctionName) -> str:
        """The same for every controller of the job, so that one takes over from another."""
        return f"{agent_name(self._cluster.release)}-{self._digest()}-{function}"

    def _route(self, function: FunctionName) -> str:
        return f"{agent_route(self._cluster.release)}/{self._digest()}/{function}"

    def _pool(self, function: FunctionName) -> RayPool:
        try:
            return self._pools[function]
        except KeyError:
            raise InternalError(f"the function {function} is not deployed here") from None

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled() or (error := task.exception()) is None:
                return
            _log.error("the platform failed", exc_info=error)
            detail = f"the Ray platform failed: {type(error).__name__}: {error}"
            self._failure = InternalError(detail)
            for pool in self._pools.values():
                pool.fail(self._failure)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)

    def began(self, function: FunctionName, name: tuple[str, str], header: str) -> str:
        """A replica has taken a call; its name."""
        replica = self._serving[name] = self._replicas.began(function, header)
        self._cluster.look()
        return replica

    def ended(self, name: tuple[str, str], replica: str) -> None:
        if self._serving.get(name) == replica:
            del self._serving[name]
        self._replicas.ended(replica)


class _Sent:
    """A call on its way: on no replica until the answer names one."""

    def __init__(
        self, platform: RayServePlatform, function: FunctionName, name: tuple[str, str]
    ) -> None:
        self._platform, self._function, self._name = platform, function, name
        self._replica: str | None = None

    def admitted(self, header: str) -> None:
        self._replica = self._platform.began(self._function, self._name, header)

    def ended(self) -> None:
        if self._replica is not None:
            self._platform.ended(self._name, self._replica)


def _must_hand_over(replica: Replica) -> bool:
    """Its node goes; or Serve wants fewer replicas and took one at work: only a rollout loses
    nothing by going elsewhere, other calls may end."""
    return replica.phase == "leaving" or (
        replica.phase == "stopping" and replica.function == "rollout"
    )
