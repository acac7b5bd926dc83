"""Calls of one function that wait for a replica, and what brings replicas up.

A call is sent at once and waits in Serve's router: that is the demand by which Serve scales. Only
what is above the platform's own bound waits here. ``scale`` raises the application's least number
of replicas until so many are ready, and then lets Serve's idle time have them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from controller.platforms.base import Deployment
from controller.platforms.ray_replicas import Replica
from rlhfless.errors import CapacityError, InternalError, RlhflessError
from rlhfless.ray_apps import RayAppState, Resources

T = TypeVar("T")
_COUNTED = {"num_cpus": "CPU", "num_gpus": "GPU", "memory_bytes": "memory"}


class RayPool:
    """``most``: instances at a time; ``warm``: instances that ``scale`` asked for; ``floor``: the
    least number that Serve has been told; ``attempt``: of getting replicas to start."""

    def __init__(
        self, deployment: Deployment, resources: Resources, start_timeout_s: float, *, elastic: bool
    ) -> None:
        self.deployment = deployment
        self.resources = resources
        self.most = deployment.max_instances
        self.warm = 0
        self.floor = 0
        self.attempt = 0
        self.told = RayAppState(name="")
        self._start_timeout_s = start_timeout_s
        self._elastic = elastic
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._unplaced: set[asyncio.Future[None]] = set()
        self._barren_since_s: float | None = None

    # --- calls ------------------------------------------------------------------------------------

    async def enter(self, *, first: bool) -> None:
        """Wait until the bound has room; in order of asking, ``first`` before all others."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        self.serve()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.leave()
            raise

    def leave(self) -> None:
        self._in_flight -= 1
        self.serve()

    def serve(self) -> None:
        while self._waiting and self._in_flight < self.most * self.deployment.concurrency:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._in_flight += 1
                waiter.set_result(None)

    async def placed(self, coming: Coroutine[Any, Any, T]) -> T:
        """What comes first from a call that was sent, unless the pool loses hope before: then that
        error is raised and the call is given up."""
        task = asyncio.create_task(coming)
        hopeless: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unplaced.add(hopeless)
        either: set[asyncio.Future[Any]] = {task, hopeless}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                hopeless.result()  # raises why
            return await task
        finally:
            self._unplaced.discard(hopeless)
            hopeless.cancel()
            task.cancel()
            await asyncio.gather(task, hopeless, return_exceptions=True)

    def fail(self, error: RlhflessError) -> None:
        """Nobody who waits gets a replica."""
        for waiter in (*self._waiting, *self._unplaced):
            if not waiter.done():
                waiter.set_exception(error)
        self._waiting.clear()

    @property
    def idle(self) -> bool:
        """No call is on its way or waits."""
        return not self._in_flight and not self._waiting

    # --- what keeps replicas from coming ----------------------------------------------------------

    def check(self, replicas: list[Replica], largest: dict[str, float]) -> bool:
        """From time to time: end the waiting for what does not come. True: replicas cannot start,
        and the application should be made anew before it is tried again."""
        ready = any(replica.phase in ("ready", "leaving") for replica in replicas)
        wanting = bool(self._unplaced) or self.warm > 0
        if ready or not wanting:
            self._barren_since_s = None
            return False
        if self.told.failing:
            detail = f"{self.deployment.function} does not start on Ray: {self.told.trouble}"
            self.warm = 0
            self.fail(InternalError(detail))
            return True
        now_s = asyncio.get_running_loop().time()
        if self._barren_since_s is None:
            self._barren_since_s = now_s
        lacking = self.lacking(largest)
        waited_s = now_s - self._barren_since_s
        if waited_s < self._start_timeout_s and (self._elastic or not lacking):
            return False
        name = self.deployment.function
        detail = f"no {name} replica was ready within {waited_s:.0f} s"
        if any(replica.phase == "cold" for replica in replicas):
            why = self.told.trouble or "it is starting still"
        else:
            detail = f"Ray cannot place a {name} replica"
            why = "; ".join(part for part in (lacking, self.told.trouble) if part)
        hint = "add nodes, raise the autoscaler's bounds, or ask for less; `ray status` tells more"
        self.warm, self._barren_since_s = 0, None
        self.fail(CapacityError(f"{detail}: {why}" if why else detail, hint=hint))
        return False

    def lacking(self, largest: dict[str, float]) -> str:
        """What no node of the cluster has enough of, in use or not."""
        if not largest:
            return ""
        wanted = {name: getattr(self.resources, field) for field, name in _COUNTED.items()}
        wanted |= self.resources.custom
        if self.resources.accelerator_type:
            wanted[f"accelerator_type:{self.resources.accelerator_type}"] = 0.001
        parts = [
            f"it asks for {amount:g} {name} and no node has more than {largest.get(name, 0):g}"
            for name, amount in wanted.items()
            if amount > largest.get(name, 0.0)
        ]
        return "; ".join(parts)
