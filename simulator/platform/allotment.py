"""Who gets accelerators, in the order they were asked for.

Instances that calls wait for come first. The first of them is served first: later ones wait for it
even where they would fit, so that a training instance of sixteen accelerators is not starved by
rollouts of one. Where accelerators are time-shared, idle instances of other functions are asked to
make room for it. Instances that are started ahead of calls take what nobody else wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from simulator.cluster import Pool
from simulator.platform.capacity import Capacity, Grant
from simulator.platform.instance import SimulatedInstance


@dataclass(frozen=True, eq=False)
class _Wanted:
    """``sizes``: pools in order of preference, and how many accelerators of each."""

    instance: SimulatedInstance
    sizes: Sequence[tuple[Pool, int]]
    spot: bool
    granted: asyncio.Future[Grant]


class Allotment:
    """``urgent``: whether calls wait for an instance; ``idle``: instances that could make room for
    another, the longest unused first; ``make_room`` tells one to."""

    def __init__(
        self,
        capacity: Capacity,
        urgent: Callable[[SimulatedInstance], bool],
        idle: Callable[[SimulatedInstance], Iterable[SimulatedInstance]],
        make_room: Callable[[SimulatedInstance], None],
    ) -> None:
        self._capacity = capacity
        self._urgent = urgent
        self._idle = idle
        self._make_room = make_room
        self._queue: list[_Wanted] = []
        self._coming: dict[Grant, None] = {}  # of instances that were told to make room

    async def take(
        self, instance: SimulatedInstance, sizes: Sequence[tuple[Pool, int]], *, spot: bool
    ) -> Grant:
        """Return when the instance has accelerators."""
        granted: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        wanted = _Wanted(instance, sizes, spot, granted)
        self._queue.append(wanted)
        self.serve()
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give(granted.result())
            raise
        finally:
            if wanted in self._queue:
                self._queue.remove(wanted)
                self.serve()

    def give(self, grant: Grant) -> None:
        self._coming.pop(grant, None)
        self._capacity.give(grant)
        self.serve()

    def serve(self) -> None:
        """Grant what can be granted."""
        for wanted in [each for each in self._queue if self._urgent(each.instance)]:
            if wanted not in self._queue or wanted.granted.done():
                continue  # served meanwhile by one that made room, or cancelled
            if not self._try(wanted):
                self._ask_for_room(wanted)
                return
        refused = set()  # granting takes room and never makes any: who asks for as much need not
        for wanted in list(self._queue):
            asked = (*((pool.name, count) for pool, count in wanted.sizes), wanted.spot)
            if asked in refused or wanted not in self._queue or wanted.granted.done():
                continue
            if not self._try(wanted):
                refused.add(asked)

    def _try(self, wanted: _Wanted) -> bool:
        grant = self._grant(wanted)
        if grant is None:
            return False
        self._queue.remove(wanted)
        wanted.granted.set_result(grant)
        return True

    def _grant(self, wanted: _Wanted) -> Grant | None:
        for pool, count in wanted.sizes:
            grant = self._capacity.take(pool, count, spot=wanted.spot)
            if grant is not None:
                return grant
        return None

    def _ask_for_room(self, wanted: _Wanted) -> None:
        idle = {
            each.grant: each
            for each in self._idle(wanted.instance)
            if each.grant is not None and each.grant not in self._coming
        }
        for pool, count in wanted.sizes:
            free = (*self._coming, *idle)
            grants = self._capacity.makes_room(pool, count, free, spot=wanted.spot)
            if grants is not None:
                for grant in [each for each in grants if each in idle]:
                    self._coming[grant] = None
                    self._make_room(idle[grant])
                return
