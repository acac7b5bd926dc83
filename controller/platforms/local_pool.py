"""Which instance gets the next call: the routing state of one function, without I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from controller.platforms.base import Deployment
from controller.platforms.local_instance import LocalInstance
from rlhfless.errors import RlhflessError


@dataclass
class Pool:
    """``waiting`` calls are served first come, first served. ``failures`` counts starts that failed
    in a row; while ``paused`` none is tried. ``owed``: instances asked for ahead of calls and not
    begun yet, for want of room. ``kind``: pools of equal kinds may exchange instances; None: with
    nobody. ``most``: a bound below the deployment's maximum, None without one."""

    deployment: Deployment
    kind: Hashable = None
    most: int | None = None
    instances: dict[str, LocalInstance] = field(default_factory=dict)
    waiting: deque[asyncio.Future[LocalInstance]] = field(default_factory=deque)
    failures: int = 0
    paused: bool = False
    owed: int = 0
    closing: bool = False

    def pick(self) -> LocalInstance | None:
        """The least busy instance with room; among equals the one used last, so that others can
        time out; one that is to be released only if no other has room."""
        roomy = [i for i in self.instances.values() if i.has_room]
        return min(roomy, key=lambda i: (i.retiring, i.calls, -i.last_used_s), default=None)

    def next_waiting(self) -> asyncio.Future[LocalInstance] | None:
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                return waiter
        return None

    @property
    def num_missing(self) -> int:
        """Instances to start so that those waiting get a slot and what is owed is there, within
        the maximum."""
        if self.paused:
            return 0
        size = self.deployment.concurrency
        coming = sum(size for i in self.instances.values() if i.state == "cold")
        needed = -(-max(0, self.num_waiting - coming) // size)
        return min(max(needed, self.owed), self.room)

    @property
    def num_waiting(self) -> int:
        return sum(not w.done() for w in self.waiting)

    @property
    def limit(self) -> int:
        """Instances there may be now."""
        most = self.deployment.max_instances
        return most if self.most is None else min(max(0, self.most), most)

    @property
    def room(self) -> int:
        """Instances that may still be started. One that is stopping still holds its place."""
        return 0 if self.closing else max(0, self.limit - len(self.instances))

    @property
    def hungry(self) -> bool:
        """Whether one more instance, ready now, would be put to use, though others may be on their
        way."""
        return self.room > 0 and (self.num_waiting > 0 or self.owed > 0)

    @property
    def staying(self) -> list[LocalInstance]:
        return [i for i in self.instances.values() if not (i.stopping or i.retiring or i.leaving)]

    def mark_leaving(self) -> None:
        """Choose whom the bound lets go: those already chosen, then those that are not ready yet,
        then those idle the longest, then the least busy. They get no more calls."""
        running = [i for i in self.instances.values() if not i.stopping]
        running.sort(key=lambda i: (not i.leaving, i.calls, i.ready, i.last_used_s))
        surplus = max(0, len(running) - self.limit)
        for place, instance in enumerate(running):
            instance.leaving = place < surplus

    def fail_waiting(self, error: RlhflessError) -> None:
        while (waiter := self.next_waiting()) is not None:
            waiter.set_exception(error)
