"""The local platform: function instances as processes of this machine.

Calls go over Unix sockets in a private folder. An instance is started when a call finds no room
(never more than the deployment's maximum), serves call after call while it is warm, and is
stopped when it has been idle for its time-out. A process that ends is noticed at once: its calls
raise ``TransientError``, its place is free, and the next call starts another. The ledger books
every change. Platforms of one ``LocalHost`` exchange idle instances of one kind instead of starting
more (``local_sharing``). Nothing this platform started outlives it, or its controller
(``rlhfless.lifeline``), but what it has handed over.

Everything here runs in one event loop, so state changes need no locks: each method leaves the
books consistent before it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Hashable, Iterable, Mapping, Sequence

from controller.ledger import Ledger
from controller.platforms.base import Deployment, Instance
from controller.platforms.local_host import LocalHost, LocalOptions
from controller.platforms.local_instance import LocalInstance, Refused
from controller.platforms.local_lives import Lives
from controller.platforms.local_logs import LogSlice
from controller.platforms.local_pool import Pool
from controller.platforms.local_sharing import PROMISE_S
from rlhfless.errors import CapacityError, InternalError
from rlhfless.frames import encode_request
from rlhfless.messages import ROUTES, AnyFrame, FunctionName, Request, SteerRequest

__all__ = ["LocalOptions", "LocalPlatform"]

_REFUSED_PAUSE_S = 0.02
_log = logging.getLogger(__name__)


class LocalPlatform:
    """``async with LocalPlatform(...) as platform``, or ``close()`` at the end.

    Either on a ``host``, or with a host of its own whose ``folder`` gets one log file an instance.
    ``kinds``: what instances of a function must have in common to be exchanged with siblings on the
    host (tenant, model, ...); a function without one is not shared. Sizes need not be part of it.
    """

    def __init__(
        self,
        deployments: Sequence[Deployment],
        *,
        ledger: Ledger,
        folder: str | None = None,
        options: LocalOptions | None = None,
        host: LocalHost | None = None,
        kinds: Mapping[FunctionName, Hashable] | None = None,
    ) -> None:
        self._owns_host = host is None
        if host is None:
            assert folder is not None, "a platform without a host needs a folder for its logs"
            functions = [d.function for d in deployments]
            host = LocalHost(folder, options, functions=functions, keep_logs=True)
        else:
            assert folder is None and options is None, "these are the host's"
        self.host = host
        kinds = kinds or {}
        self._pools = {d.function: Pool(d, kinds.get(d.function)) for d in deployments}
        self._lives = Lives(host, ledger, self._serve)
        self._serving: dict[tuple[str, str], LocalInstance] = {}  # by job and call
        self._closing = False
        host.enter(self)
        host.exchange.join(self._lives, list(self._pools.values()))

    async def __aenter__(self) -> LocalPlatform:
        """Begin to warm the zygote, so that the first instance need not wait for all of it."""
        try:
            self.host.start()
            accelerators = [pool.deployment.accelerator for pool in self._pools.values()]
            if any(self.host.options.forks(accelerator) for accelerator in accelerators):
                await self.host.warm()
        except BaseException:
            await self.close()
            raise
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
                self._lives.release(pool, instance)

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
                self._lives.let_go(pool, instance)
        promised_s = asyncio.get_running_loop().time() + PROMISE_S
        for instance in pool.staying:
            instance.free_from_s = max(instance.free_from_s, promised_s)

    def instances(self) -> tuple[Instance, ...]:
        return tuple(i.told for pool in self._pools.values() for i in pool.instances.values())

    async def close(self) -> None:
        """Instances that siblings wait for go to them; the others end."""
        if self._closing:
            return
        self._closing = True
        pools = list(self._pools.values())
        for pool in pools:
            pool.closing = True
            pool.fail_waiting(CapacityError("the platform is closing"))
        try:
            await self._lives.close(pools)
        finally:
            self.host.exchange.leave(self._lives)
            self.host.leave(self)
            if self._owns_host:
                await self.host.close()

    # --- for who drives several jobs --------------------------------------------------------------

    def bound(self, function: FunctionName, most: int) -> None:
        """Hold no more than ``most`` instances of a function until told otherwise; 0: none, and
        calls wait.

        Returns at once. Nothing above it starts; of what is above it, idle instances go in a
        moment and busy ones when their calls end, whoever waits. In between they are there for
        siblings of their kind: what one platform loses another that is bound higher in the same
        breath takes over, in whichever order the two are told.
        """
        pool = self._pool(function)
        pool.most = most
        pool.mark_leaving()
        loop = asyncio.get_running_loop()

        def settle() -> None:
            self._serve(pool)
            loop.call_soon(self._lives.let_leave, pool)

        loop.call_soon(settle)

    def preempt(self, instance_id: str) -> None:
        """What a spot notice does: SIGTERM; the instance drains, hands back its work and ends."""
        for pool in self._pools.values():
            if instance_id in pool.instances:
                pool.instances[instance_id].terminate()

    def log_slices(self) -> list[LogSlice]:
        """What instances wrote while they were this platform's; also after it is closed."""
        return self._lives.log_slices()

    def drop_logs(self, parts: Iterable[LogSlice]) -> None:
        """These have been read. Those that have an end are told of no more, and on a host that does
        not keep logs a file goes when nobody else needs it."""
        self._lives.drop_logs(parts)

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
                self._lives.release(pool, waiter.result())
            raise

    def _serve(self, pool: Pool) -> None:
        """Give free slots to those who wait, then take over or start what they still lack."""
        self._give_slots(pool)
        while pool.num_missing > 0:
            if self.host.exchange.borrow(self._lives, pool):
                self._give_slots(pool)
            else:
                self._lives.begin(pool)

    def _give_slots(self, pool: Pool) -> None:
        while pool.waiting and (instance := pool.pick()) is not None:
            waiter = pool.next_waiting()
            if waiter is None:
                break
            self._lives.take(instance)
            waiter.set_result(instance)

    def _pause(self, pool: Pool, instance: LocalInstance) -> None:
        """Ask it again in a moment; one that refuses for as long as a hanging one hangs."""
        loop = asyncio.get_running_loop()
        if instance.refusing_since_s is None:
            instance.refusing_since_s = loop.time()
        elif loop.time() - instance.refusing_since_s > self.host.options.silence_s:
            _log.warning("%s does not end a call that was aborted; killing it", instance.id)
            instance.kill()
        instance.paused = True

        def resume() -> None:
            instance.paused = False
            self._serve(pool)

        loop.call_later(_REFUSED_PAUSE_S, resume)

    def _pool(self, function: FunctionName) -> Pool:
        try:
            return self._pools[function]
        except KeyError:
            raise InternalError(f"the function {function} is not deployed here") from None
