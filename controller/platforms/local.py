"""The local platform: function instances as processes of this machine.

Calls go over Unix sockets in a private folder. An instance is started when a call finds no room
(never more than the deployment's maximum), serves call after call while it is warm, and is
stopped when it has been idle for its time-out. A process that ends is noticed at once: its calls
raise ``TransientError``, its place is free, and the next call starts another. The ledger books
every change. Nothing this platform started outlives it, or its controller (``rlhfless.lifeline``).

Everything here runs in one event loop, so state changes need no locks: each method leaves the
books consistent before it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.homes import open_home
from controller.ledger import Ledger
from controller.platforms.base import Deployment, Instance
from controller.platforms.local_instance import LocalInstance, Refused, Terms
from controller.platforms.local_pool import Pool
from controller.platforms.local_processes import (
    PRELOAD,
    FreshLauncher,
    Launcher,
    ZygoteLauncher,
)
from rlhfless.errors import CapacityError, InternalError, RlhflessError, of_os_error
from rlhfless.frames import encode_request
from rlhfless.lifeline import Home
from rlhfless.messages import ROUTES, AnyFrame, FunctionName, Request, SteerRequest

_START_ATTEMPTS = 3
_REFUSED_PAUSE_S = 0.02
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalOptions:
    """``apps``: ``module:create`` by function, where it is not the function's own.

    ``zygote``: fork instances off a process that has imported torch. Only on Linux, and not on
    CUDA, where a forked process may inherit a driver state it cannot use: such instances are fresh
    processes and take the seconds of their imports. ``preload`` is what the zygote imports beside
    the functions themselves.
    """

    apps: Mapping[FunctionName, str] = field(default_factory=dict)
    zygote: bool = True
    preload: Sequence[str] = PRELOAD
    start_timeout_s: float = 120.0
    grace_s: float = 20.0
    silence_s: float = 60.0
    retry_pause_s: float = 0.5


class LocalPlatform:
    """``async with LocalPlatform(...) as platform``, or ``close()`` at the end.

    ``folder`` gets one log file an instance.
    """

    def __init__(
        self,
        deployments: Sequence[Deployment],
        *,
        ledger: Ledger,
        folder: str,
        options: LocalOptions | None = None,
    ) -> None:
        self._options = options or LocalOptions()
        self._ledger = ledger
        self._folder = os.path.abspath(folder)
        self._pools = {d.function: Pool(d) for d in deployments}
        self._terms = Terms(
            token=secrets.token_urlsafe(32),
            folder=self._folder,
            grace_s=self._options.grace_s,
            start_timeout_s=self._options.start_timeout_s,
            silence_s=self._options.silence_s,
        )
        self._started: tuple[Home, ZygoteLauncher, FreshLauncher] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: dict[tuple[str, str], LocalInstance] = {}  # by job and call
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._num_started = 0
        self._closing = False

    async def __aenter__(self) -> LocalPlatform:
        """Begin to warm the zygote, so that the first instance need not wait for all of it."""
        _, zygote, _ = self._start()
        if any(self._forks(pool.deployment) for pool in self._pools.values()):
            await zygote.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- the platform's five methods --------------------------------------------------------------

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame, None]:
        function, path = ROUTES[type(request)]
        pool = self._pool(function)
        body = encode_request(request)
        name = (request.call.job, request.call.id)
        again = False
        while True:
            instance = await self._acquire(pool, first=again)
            self._serving[name] = instance
            try:
                async with contextlib.aclosing(instance.call(path, body)) as frames:
                    async for frame in frames:
                        yield frame
                return
            except Refused as refused:
                if not isinstance(refused.error, CapacityError) and not instance.stopping:
                    raise refused.error from None
                # It is still ending a call that was aborted, or it drains: no fault of this call.
                self._pause(pool, instance)
                again = True
            finally:
                if self._serving.get(name) is instance:
                    del self._serving[name]
                self._release(pool, instance)

    async def steer(self, request: SteerRequest) -> bool:
        instance = self._serving.get((request.call.job, request.target))
        return instance is not None and await instance.steer(request)

    async def scale(self, function: FunctionName, count: int) -> None:
        pool = self._pool(function)
        if self._closing:
            return
        count = min(count, pool.deployment.max_instances)
        for instance in pool.instances.values():
            instance.retiring = False
        pool.owed = max(0, count - len(pool.staying))
        self._serve(pool)
        surplus = sorted(pool.staying, key=lambda i: (i.calls > 0, i.last_used_s))
        for instance in surplus[: max(0, len(pool.staying) - count)]:
            instance.retiring = True
            if instance.ready and not instance.calls:
                self._stop(instance)

    def instances(self) -> tuple[Instance, ...]:
        return tuple(
            Instance(i.id, i.deployment.function, i.state, i.calls)
            for pool in self._pools.values()
            for i in pool.instances.values()
        )

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        for timer in self._timers.values():
            timer.cancel()
        for pool in self._pools.values():
            pool.fail_waiting(CapacityError("the platform is closing"))
        if self._started is None:
            return
        home, zygote, fresh = self._started
        try:
            running = [i for pool in self._pools.values() for i in pool.instances.values()]
            await asyncio.gather(*(i.stop(self._options.grace_s + 2) for i in running))
            await zygote.close()
            await fresh.close()
            while self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:  # also when closing is itself cancelled: then nobody is asked any more
            for task in self._tasks:
                task.cancel()
            home.close()

    def preempt(self, instance_id: str) -> None:
        """What a spot notice does: SIGTERM; the instance drains, hands back its work and ends."""
        for pool in self._pools.values():
            if instance_id in pool.instances:
                pool.instances[instance_id].terminate()

    # --- slots ------------------------------------------------------------------------------------

    async def _acquire(self, pool: Pool, *, first: bool) -> LocalInstance:
        if self._closing:
            raise CapacityError("the platform is closing")
        waiter: asyncio.Future[LocalInstance] = asyncio.get_running_loop().create_future()
        if first:
            pool.waiting.appendleft(waiter)
        else:
            pool.waiting.append(waiter)
        self._serve(pool)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release(pool, waiter.result())
            raise

    def _serve(self, pool: Pool) -> None:
        """Give free slots to those who wait, then start what they still lack."""
        while pool.waiting and (instance := pool.pick()) is not None:
            waiter = pool.next_waiting()
            if waiter is None:
                break
            self._take(instance)
            waiter.set_result(instance)
        if not self._closing:
            for _ in range(pool.num_missing):
                self._begin(pool)

    def _take(self, instance: LocalInstance) -> None:
        instance.calls += 1
        instance.retiring = False
        if (timer := self._timers.pop(instance.id, None)) is not None:
            timer.cancel()
        self._ledger.phase(instance.id, "busy", _now())

    def _release(self, pool: Pool, instance: LocalInstance) -> None:
        instance.calls -= 1
        instance.last_used_s = _now()
        if instance.id not in pool.instances:
            return
        if instance.calls == 0:
            self._ledger.phase(instance.id, "idle", _now())
        self._serve(pool)
        if instance.calls == 0 and not instance.stopping:
            self._rest(instance)

    def _pause(self, pool: Pool, instance: LocalInstance) -> None:
        """Ask it again in a moment; one that refuses for as long as a hanging one hangs."""
        now = _now()
        if instance.refusing_since_s is None:
            instance.refusing_since_s = now
        elif now - instance.refusing_since_s > self._options.silence_s:
            _log.warning("%s does not end a call that was aborted; killing it", instance.id)
            instance.kill()
        instance.paused = True

        def resume() -> None:
            instance.paused = False
            self._serve(pool)

        asyncio.get_running_loop().call_later(_REFUSED_PAUSE_S, resume)

    def _rest(self, instance: LocalInstance) -> None:
        """It has nothing to do: let it go now, or when its time-out is over."""
        if instance.retiring:
            self._stop(instance)
            return
        self._timers[instance.id] = asyncio.get_running_loop().call_later(
            instance.deployment.idle_timeout_s, self._stop, instance
        )

    # --- instances --------------------------------------------------------------------------------

    def _begin(self, pool: Pool) -> None:
        home, _, _ = self._start()
        self._num_started += 1
        pool.owed = max(0, pool.owed - 1)
        function = pool.deployment.function
        instance = LocalInstance(
            f"{function}-{self._num_started}",
            pool.deployment,
            self._app(function),
            home,
            self._terms,
        )
        pool.instances[instance.id] = instance
        self._spawn_task(self._live(pool, instance))

    async def _live(self, pool: Pool, instance: LocalInstance) -> None:
        """An instance from its start to its end."""
        failure: RlhflessError | None = None
        try:
            process = await instance.spawn(self._launcher(pool.deployment))
            self._ledger.started(instance.id, pool.deployment.function, _now())
            if self._closing:
                instance.kill()
            try:
                await instance.until_ready()
                pool.failures = 0
                self._ledger.phase(instance.id, "idle", _now())
                self._serve(pool)
                if instance.calls == 0:
                    self._rest(instance)
                await asyncio.wait({process.exited})
            finally:
                instance.kill()
                await asyncio.wait({process.exited})
        except RlhflessError as error:
            failure = error
        except Exception as error:  # the task's boundary: who waits for it must be told
            _log.exception("%s cannot be run", instance.id)
            failure = InternalError(f"{instance.id} cannot be run: {type(error).__name__}: {error}")
        finally:
            del pool.instances[instance.id]
            self._ledger.stopped(instance.id, _now())
            if (timer := self._timers.pop(instance.id, None)) is not None:
                timer.cancel()
        await instance.clean_up()
        if failure is not None and not self._closing:
            await self._start_failed(pool, failure)
        self._serve(pool)

    async def _start_failed(self, pool: Pool, failure: RlhflessError) -> None:
        """Try again a few times, then tell those who wait, unless others can serve them."""
        pool.failures += 1
        _log.warning("%s", failure.detail)
        if pool.failures >= _START_ATTEMPTS and not any(i.ready for i in pool.instances.values()):
            pool.failures = 0
            pool.fail_waiting(failure)
            return
        pool.paused = True
        await asyncio.sleep(self._options.retry_pause_s)
        pool.paused = False

    def _stop(self, instance: LocalInstance) -> None:
        """An idle instance ends; from this moment on nobody gets it."""
        if instance.stopping:
            return
        instance.stopping = True
        self._spawn_task(instance.stop(self._options.grace_s + 2))

    def _launcher(self, deployment: Deployment) -> Launcher:
        _, zygote, fresh = self._start()
        return zygote if self._forks(deployment) else fresh

    def _forks(self, deployment: Deployment) -> bool:
        return self._options.zygote and deployment.accelerator == "cpu" and sys.platform == "linux"

    def _app(self, function: FunctionName) -> str:
        return self._options.apps.get(function, f"functions.{function}.app:create")

    # --- the rest ---------------------------------------------------------------------------------

    def _start(self) -> tuple[Home, ZygoteLauncher, FreshLauncher]:
        if self._started is None:
            try:
                os.makedirs(self._folder, exist_ok=True)
            except OSError as error:
                raise of_os_error(f"cannot write to {self._folder}", error) from error
            home = open_home()
            log = os.path.join(self._folder, "zygote.log")
            apps = [self._app(function).partition(":")[0] for function in self._pools]
            zygote = ZygoteLauncher(home, log, [*self._options.preload, *apps])
            self._started = (home, zygote, FreshLauncher(home))
        return self._started

    def _pool(self, function: FunctionName) -> Pool:
        try:
            return self._pools[function]
        except KeyError:
            raise InternalError(f"the function {function} is not deployed here") from None

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _now() -> float:
    return asyncio.get_running_loop().time()
