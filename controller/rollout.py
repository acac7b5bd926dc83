"""Rollout of a step: one stream for each actor, every token collected as it arrives.

While the actors stream, a watcher may move samples between them and let instances go that have
nothing left (``controller.rebalance`` decides). Moving a sample never loses a token: the stream
that gives it up sends what it has first, and the one that takes it over starts from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from controller.actor import Actor, OnFinished, RunningCall
from controller.collector import Collector
from controller.job import Job
from controller.requests import RolloutTask
from controller.rollout_stats import RolloutStats


@dataclass(frozen=True)
class _Move:
    """A sample on its way: ``call`` is the one asked to give it up."""

    source: Actor
    call: RunningCall
    target: Actor


class Rollout:
    """``run`` generates every sample of an assignment (one list of ids an actor) that is not
    finished. ``on_finished`` is awaited with samples as they end, in the order they end on each
    actor; ``on_ended`` after an actor has nothing left."""

    def __init__(
        self,
        job: Job,
        task: RolloutTask,
        collector: Collector,
        on_finished: OnFinished,
        on_ended: Callable[[Rollout], Awaitable[None]] | None = None,
    ) -> None:
        self.actors: list[Actor] = []
        self.num_running = 0
        self.collector = collector
        self.stats = RolloutStats()
        self._job = job
        self._task = task
        self._on_finished = on_finished
        self._on_ended = on_ended
        self._moves: dict[str, _Move] = {}
        self._group: asyncio.TaskGroup
        self._over = asyncio.Event()

    @property
    def running(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.ended]

    @property
    def moving(self) -> set[str]:
        """Samples that were asked for and have not arrived anywhere yet."""
        return {s for s, move in self._moves.items() if move.call is move.source.call}

    async def run(
        self,
        assignment: Sequence[Sequence[str]],
        watch: Callable[[Rollout], Awaitable[None]] | None,
        every_s: float,
    ) -> RolloutStats:
        """Calls ``watch`` every ``every_s`` seconds until all is done. Raises the first error that
        retries could not cure."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for ids in assignment:
                self._start(ids)
            if watch is not None and self.actors:
                group.create_task(self._watch(watch, every_s), name="rollout-watch")
        return self.stats

    async def move(self, source: Actor, target: Actor, ids: Sequence[str]) -> None:
        """Ask ``source`` to give up ``ids``; they join ``target`` when it has."""
        call = source.call
        if call is None:
            return
        # They may have been chosen when another call had them, and have ended with it.
        held = set(call.contents.ids)
        ids = [i for i in ids if i in held]
        if not ids:
            return
        moves = {i: _Move(source, call, target) for i in ids}
        self._moves |= moves
        if not await source.release(ids):
            for i, move in moves.items():
                if self._moves.get(i) is move:
                    del self._moves[i]

    # --- actors -------------------------------------------------------------------------------

    def _start(self, ids: Sequence[str]) -> None:
        name = f"{self._task.name}-{len(self.actors)}"
        actor = Actor(
            self._job,
            self._task,
            self.collector,
            ids,
            name,
            self.stats,
            self._on_finished,
            lambda given: self._released(actor, given),
        )
        self.actors.append(actor)
        self.num_running += 1
        self._group.create_task(self._run(actor), name=f"rollout-{name}")

    async def _run(self, actor: Actor) -> None:
        await actor.run()
        self.num_running -= 1
        if not self.num_running:
            self._over.set()
        elif self._on_ended is not None:
            await self._on_ended(self)

    def _released(self, source: Actor, ids: Sequence[str]) -> None:
        """Samples left ``source``: bring each to where it was to go. Does not wait."""
        targets: dict[Actor, list[str]] = {}
        for sample in ids:
            move = self._moves.pop(sample, None)
            # Without a move the request for it had been taken for lost: it stays where it was.
            targets.setdefault(source if move is None else move.target, []).append(sample)
        for target, samples in targets.items():
            if target is not source:
                groups = {self.collector.samples[sample].group for sample in samples}
                self.stats.moved += len(samples)
                self.stats.moved_prompts += len(groups - (set() if target.ended else target.groups))
            if target.ended:
                self._start(samples)
                continue
            target.own(samples)
            self._group.create_task(target.feed(samples), name=f"feed-{target.name}")

    async def _watch(self, watch: Callable[[Rollout], Awaitable[None]], every_s: float) -> None:
        while not self._over.is_set():
            try:
                async with asyncio.timeout(every_s):
                    await self._over.wait()
            except TimeoutError:
                await watch(self)
