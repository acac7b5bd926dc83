"""Instances of one function, and the calls that wait for one of them."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from controller.platforms.base import Deployment
from simulator.platform.instance import SimulatedInstance


@dataclass
class Slots:
    """``waiting``: calls without an instance, in order."""

    deployment: Deployment
    instances: dict[str, SimulatedInstance] = field(default_factory=dict)
    waiting: deque[asyncio.Future[SimulatedInstance]] = field(default_factory=deque)
    started: int = 0
    free: dict[SimulatedInstance, None] = field(default_factory=dict)
    """Those that may have room, in the order in which they came to have it."""

    def pick(self) -> SimulatedInstance | None:
        """A ready instance with room: the one used last."""
        while self.free:
            instance = next(reversed(self.free))
            ready = instance.life == "ready" and not instance.draining
            if ready and instance.calls < self.concurrency:
                return instance
            del self.free[instance]
        return None

    def has_room(self, instance: SimulatedInstance) -> None:
        """It became ready, or a call on it ended."""
        self.free.pop(instance, None)
        self.free[instance] = None

    @property
    def concurrency(self) -> int:
        return self.deployment.concurrency

    @property
    def staying(self) -> list[SimulatedInstance]:
        """Those that hold accelerators, or will, and are not about to give them up."""
        return [
            each
            for each in self.instances.values()
            if each.life in ("starting", "ready") and not each.draining and not each.retiring
        ]

    @property
    def missing(self) -> int:
        """Instances to start for the calls that wait."""
        if not self.waiting:
            return 0
        coming = sum(i.life == "starting" and not i.draining for i in self.instances.values())
        wanted = -(-self._num_waiting // self.concurrency) - coming
        return max(0, min(wanted, self.room))

    @property
    def room(self) -> int:
        """Instances that may still be started. One that drains still holds its place."""
        awake = sum(i.life in ("starting", "ready") for i in self.instances.values())
        return max(0, self.deployment.max_instances - awake)

    @property
    def _num_waiting(self) -> int:
        return sum(not waiter.done() for waiter in self.waiting)

    def next_waiting(self) -> asyncio.Future[SimulatedInstance] | None:
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                return waiter
        return None

    def asleep(self) -> SimulatedInstance | None:
        return next((each for each in self.instances.values() if each.life == "asleep"), None)
