"""Instances change hands between the platforms of one host: the rule, and the exchange.

Pools whose ``kind`` is equal (the driver says what makes two jobs' functions alike) run instances
that can serve each other's calls. A pool that would start one first takes over a sibling's; a pool
that would stop one first offers it to a sibling that waits. An instance belongs to one pool at
every moment, and changes hands only between calls.

So that borrowing does not starve the owner, a pool gives up an idle instance only

- if it is above the pool's bound, which means the owner must let it go anyway, or
- if no call waits at the owner, none is owed to it by ``scale``, and the instance has been idle for
  ``REST_S`` since its last call, or for ``PROMISE_S`` since it became ready, changed hands or was
  counted in by ``scale``: whoever warms instances is about to use them, and whoever has just sent
  one call often sends the next.

An owner that comes back takes over an idle one in its turn, or starts another: its bound still
holds its place. Two pools that both keep busy end with their own instances and exchange no more.

An instance that may still be at work on a call that was broken off, or refuses calls, is never
handed over: what it does for one job must not count, or be logged, for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Protocol

from controller.platforms.local_instance import LocalInstance
from controller.platforms.local_pool import Pool

REST_S = 0.2
PROMISE_S = 3.0


class Keeper(Protocol):
    """Whoever owns the instances of some pools. ``now_s`` is one for both sides of a hand-over:
    no moment is lost between their books."""

    def give(self, pool: Pool, instance: LocalInstance, now_s: float) -> None: ...

    def receive(self, pool: Pool, instance: LocalInstance, now_s: float) -> None: ...

    def serve(self, pool: Pool) -> None: ...


class Exchange:
    """All pools of a host. ``num_adopted``: how often an instance changed hands."""

    def __init__(self) -> None:
        self.num_adopted = 0
        self.closed = False
        self._members: list[tuple[Keeper, Sequence[Pool]]] = []

    def join(self, keeper: Keeper, pools: Sequence[Pool]) -> None:
        self._members.append((keeper, pools))

    def leave(self, keeper: Keeper) -> None:
        self._members = [member for member in self._members if member[0] is not keeper]

    def pools(self) -> Iterator[Pool]:
        return (pool for _, pools in self._members for pool in pools)

    def borrow(self, keeper: Keeper, pool: Pool) -> bool:
        """Have ``pool`` take over an instance that a sibling can spare."""
        now_s = asyncio.get_running_loop().time()
        best: tuple[Keeper, Pool, LocalInstance] | None = None
        for owner, sibling in self._siblings(keeper, pool):
            for instance in sibling.instances.values():
                better = best is None or spareness(instance) < spareness(best[2])
                if better and can_spare(sibling, instance, now_s):
                    best = owner, sibling, instance
        if best is None:
            return False
        owner, sibling, instance = best
        self._hand_over(owner, sibling, keeper, pool, instance)
        return True

    def offer(self, keeper: Keeper, pool: Pool, instance: LocalInstance) -> bool:
        """Before ``pool`` stops an instance: have a sibling take it over that waits for one."""
        if not can_serve_others(instance):
            return False
        for taker, sibling in self._siblings(keeper, pool):
            if sibling.hungry:
                self._hand_over(keeper, pool, taker, sibling, instance)
                taker.serve(sibling)
                return True
        return False

    def _siblings(self, keeper: Keeper, pool: Pool) -> Iterator[tuple[Keeper, Pool]]:
        if self.closed:
            return
        for owner, pools in self._members:
            for other in pools:
                if owner is not keeper and alike(pool, other):
                    yield owner, other

    def _hand_over(
        self, owner: Keeper, source: Pool, taker: Keeper, target: Pool, instance: LocalInstance
    ) -> None:
        now_s = asyncio.get_running_loop().time()
        owner.give(source, instance, now_s)
        taker.receive(target, instance, now_s)
        self.num_adopted += 1


def alike(one: Pool, other: Pool) -> bool:
    """Whether instances of one pool can serve the other's calls."""
    mine, theirs = one.deployment, other.deployment
    return (
        one.kind is not None
        and one.kind == other.kind
        and mine.function == theirs.function
        and mine.concurrency == theirs.concurrency
        and mine.threads == theirs.threads
        and mine.accelerator == theirs.accelerator
        and mine.engine == theirs.engine
        and mine.workers == theirs.workers
    )


def can_spare(pool: Pool, instance: LocalInstance, now_s: float) -> bool:
    """Whether a sibling may take the instance over now."""
    if pool.closing or not can_serve_others(instance):
        return False
    if instance.leaving:
        return True
    return not pool.num_waiting and not pool.owed and now_s >= instance.free_from_s


def can_serve_others(instance: LocalInstance) -> bool:
    """Whether it has nothing to do, and surely nothing left of what it did."""
    return instance.state == "idle" and instance.clean


def spareness(instance: LocalInstance) -> tuple[bool, float]:
    """What must go anyway first, then what has been idle the longest."""
    return (not instance.leaving, instance.last_used_s)
