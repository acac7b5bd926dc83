"""The lives of one local platform's instances: begun or taken over, kept, given up or ended.

A ``Tenure`` is the stretch of an instance's life that it belongs to this platform. It begins with a
cold start or by adoption and ends with the process or by the next adoption, and the ledger books it
as one life: where one platform's ledger books the stop, another's books the start at the same
moment, and nothing cold in between.

Everything here runs in one event loop: each method leaves the books consistent before it waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from controller.ledger import Ledger
from controller.platforms.local_host import LocalHost
from controller.platforms.local_instance import LocalInstance
from controller.platforms.local_logs import LogSlice
from controller.platforms.local_pool import Pool
from controller.platforms.local_sharing import PROMISE_S, REST_S
from rlhfless.errors import InternalError, RlhflessError

_START_ATTEMPTS = 3
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Tenure:
    """``over``: it is another platform's, or gone. ``log``: what it wrote meanwhile."""

    pool: Pool
    instance: LocalInstance
    over: asyncio.Future[None]
    log: LogSlice
    task: asyncio.Task[None] | None = None


class Lives:
    """``serve(pool)`` is called whenever a pool may be able to serve more than before."""

    def __init__(self, host: LocalHost, ledger: Ledger, serve: Callable[[Pool], None]) -> None:
        self.serve = serve
        self._host = host
        self._ledger = ledger
        self._closing = False
        self._present: dict[str, Tenure] = {}
        self._past: list[LogSlice] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- owning -----------------------------------------------------------------------------------

    def begin(self, pool: Pool) -> None:
        """Start one more instance; goes on in the background."""
        tenure = self._hold(pool, self._host.create(pool.deployment))
        tenure.task = self._spawn_task(self._live(tenure))

    def receive(self, pool: Pool, instance: LocalInstance, now_s: float) -> None:
        """Take over an idle instance that its owner has just given up."""
        instance.deployment = pool.deployment
        instance.retiring = instance.leaving = False
        tenure = self._hold(pool, instance)
        self._ledger.started(instance.id, pool.deployment.function, now_s)
        self._ledger.phase(instance.id, "idle", now_s)
        instance.free_from_s = now_s + PROMISE_S
        self.rest(pool, instance)
        tenure.task = self._spawn_task(self._live(tenure))

    def give(self, pool: Pool, instance: LocalInstance, now_s: float) -> None:
        """It is another's from this moment on."""
        assert instance.id in pool.instances, f"{instance.id} is not ours to give"
        assert instance.state == "idle", f"{instance.id} is {instance.state}"
        self._end(self._present[instance.id], now_s)

    def _hold(self, pool: Pool, instance: LocalInstance) -> Tenure:
        log = self._host.logs.begin(instance.id)
        instance.log_from = log.start
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tenure = Tenure(pool, instance, over, log)
        self._present[instance.id] = tenure
        pool.instances[instance.id] = instance
        pool.owed = max(0, pool.owed - 1)
        return tenure

    def _end(self, tenure: Tenure, now_s: float) -> None:
        instance = tenure.instance
        del tenure.pool.instances[instance.id]
        del self._present[instance.id]
        self._ledger.stopped(instance.id, now_s)
        self._past.append(self._host.logs.end(tenure.log))
        self._stop_timer(instance)
        tenure.over.set_result(None)

    async def _live(self, tenure: Tenure) -> None:
        """From its start or adoption to its end or the next adoption."""
        pool, instance = tenure.pool, tenure.instance
        failure: RlhflessError | None = None
        try:
            await self._run(tenure)
        except RlhflessError as error:
            failure = None if instance.dismissed else error
        except Exception as error:  # the task's boundary: who waits for it must be told
            _log.exception("%s cannot be run", instance.id)
            failure = InternalError(f"{instance.id} cannot be run: {type(error).__name__}: {error}")
        finally:
            given = tenure.over.done()
            if not given:
                self._end(tenure, _now())
        if not given:
            await instance.clean_up()
        if failure is not None and not self._closing:
            await self._start_failed(pool, failure)
        pool.mark_leaving()
        self.serve(pool)

    async def _run(self, tenure: Tenure) -> None:
        instance = tenure.instance
        process = instance.process
        if process is None:
            process = await instance.spawn(self._host.launcher(tenure.pool.deployment))
            self._ledger.started(instance.id, tenure.pool.deployment.function, _now())
            if instance.stopping:  # told so before there was a process
                instance.kill()
        try:
            if not instance.ready:
                await instance.until_ready()
                self._ready(tenure)
            either: set[asyncio.Future[Any]] = {process.exited, tenure.over}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not tenure.over.done():
                instance.kill()
                await asyncio.wait({process.exited})

    def _ready(self, tenure: Tenure) -> None:
        pool, instance = tenure.pool, tenure.instance
        pool.failures = 0
        self._ledger.phase(instance.id, "idle", _now())
        instance.free_from_s = _now() + PROMISE_S
        self.serve(pool)
        if instance.calls == 0:
            self.rest(pool, instance)

    async def _start_failed(self, pool: Pool, failure: RlhflessError) -> None:
        """Try again a few times, then tell those who wait, unless others can serve them."""
        pool.failures += 1
        _log.warning("%s", failure.detail)
        if pool.failures >= _START_ATTEMPTS and not any(i.ready for i in pool.instances.values()):
            pool.failures = 0
            pool.fail_waiting(failure)
            return
        pool.paused = True
        await asyncio.sleep(self._host.options.retry_pause_s)
        pool.paused = False

    # --- working and resting ----------------------------------------------------------------------

    def take(self, instance: LocalInstance) -> None:
        """It gets one more call."""
        instance.calls += 1
        instance.retiring = False
        self._stop_timer(instance)
        self._ledger.phase(instance.id, "busy", _now())

    def release(self, pool: Pool, instance: LocalInstance) -> None:
        """One of its calls is over."""
        instance.calls -= 1
        instance.last_used_s = _now()
        instance.free_from_s = instance.last_used_s + REST_S
        if instance.id not in pool.instances:
            return
        if instance.calls == 0:
            self._ledger.phase(instance.id, "idle", _now())
        self.serve(pool)
        if instance.calls == 0 and not instance.stopping:
            self.rest(pool, instance)

    def rest(self, pool: Pool, instance: LocalInstance) -> None:
        """It has nothing to do: let it go now, or when its time-out is over."""
        if instance.retiring or instance.leaving:
            self.let_go(pool, instance)
            return
        self._stop_timer(instance)
        self._timers[instance.id] = asyncio.get_running_loop().call_later(
            instance.deployment.idle_timeout_s, self.let_go, pool, instance
        )

    # --- letting go -------------------------------------------------------------------------------

    def let_go(self, pool: Pool, instance: LocalInstance) -> None:
        """An idle instance goes to a sibling that waits for one, or ends; from this moment on
        nobody here gets it."""
        if instance.stopping or self._host.exchange.offer(self, pool, instance):
            return
        instance.stopping = True
        self._spawn_task(instance.stop(self._host.options.grace_s + 2))

    def let_leave(self, pool: Pool) -> None:
        """Those above the bound go, unless they serve a call. One that is not ready yet has nothing
        to end in order."""
        for instance in list(pool.instances.values()):
            if instance.leaving and not instance.stopping and not instance.calls:
                if instance.ready:
                    self.let_go(pool, instance)
                else:
                    instance.dismissed = True
                    instance.kill()

    async def close(self, pools: Sequence[Pool]) -> None:
        """Offer what siblings wait for, and end the rest."""
        self._closing = True
        for timer in self._timers.values():
            timer.cancel()
        for pool in pools:
            for instance in list(pool.instances.values()):
                self._host.exchange.offer(self, pool, instance)
        try:
            grace_s = self._host.options.grace_s + 2
            for tenure in self._present.values():
                if tenure.instance.process is None and tenure.task is not None:
                    tenure.task.cancel()  # it may wait for the zygote's imports
            running = [tenure.instance for tenure in self._present.values()]
            await asyncio.gather(*(instance.stop(grace_s) for instance in running))
            while self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:  # also when closing is itself cancelled
            for task in self._tasks:
                task.cancel()

    # --- the rest ---------------------------------------------------------------------------------

    def log_slices(self) -> list[LogSlice]:
        return [*self._past, *(tenure.log for tenure in self._present.values())]

    def drop_logs(self, parts: Iterable[LogSlice]) -> None:
        dropped = [part for part in parts if part in self._past]
        self._past = [part for part in self._past if part not in dropped]
        self._host.logs.drop(dropped)

    def _stop_timer(self, instance: LocalInstance) -> None:
        if (timer := self._timers.pop(instance.id, None)) is not None:
            timer.cancel()

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _now() -> float:
    return asyncio.get_running_loop().time()
