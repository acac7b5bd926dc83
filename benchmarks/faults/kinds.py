"""What befalls the service. Each fault is undone by the time its method returns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.faults.disks import Disk
from benchmarks.faults.links import State
from benchmarks.faults.place import Place
from benchmarks.faults.processes import Replica, functions
from benchmarks.faults.takeovers import Takeover, Takeovers

MEAN_PAUSE_S = 4.0
LEASE_S = 6.0
Say = Callable[[str], None]
REDIS, DATA = "redis", "data"
HARMLESS = frozenset({"function killed"})
"""To the time a take-over takes."""


@dataclass(frozen=True)
class Interval:
    """When something was broken, in loop seconds."""

    kind: str
    start_s: float
    end_s: float


class Faults:
    """``wrong``: what replicas should not have done, in words."""

    def __init__(self, place: Place, takeovers: Takeovers, rng: random.Random, say: Say) -> None:
        self._place = place
        self._takeovers = takeovers
        self._rng = rng
        self._say = say
        self.done: Counter[str] = Counter()
        self.intervals: list[Interval] = []
        self._taken: set[str] = set()
        self.wrong: list[str] = []
        self.kinds: Mapping[str, tuple[float, Callable[[], Awaitable[bool]]]] = {
            "replica killed": (4, self._kill_replica),
            "all replicas killed": (0.5, self._kill_all),
            "replica asleep": (2, self._sleep_replica),
            "replica restarted": (1.5, self._restart_replica),
            "function killed": (6, self._kill_function),
            "Redis killed": (2, self._kill_redis),
            "Redis asleep": (1, self._sleep_redis),
            "link refuses": (2, lambda: self._cut("refusing")),
            "link silent": (2, lambda: self._cut("silent")),
        }
        if place.data_disk.mounted:
            self.kinds = {
                **self.kinds,
                "data disk full": (1.5, self._fill_data),
                "Redis disk full": (1, self._fill_redis),
            }

    async def run(self, seconds: float, only: str | None) -> None:
        """One after another, sometimes several at once; all are over when it returns."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        names = [name for name in self.kinds if only is None or only in name]
        weights = [self.kinds[name][0] for name in names]
        async with asyncio.TaskGroup() as group:
            while loop.time() < end_s:
                await asyncio.sleep(self._rng.expovariate(1 / MEAN_PAUSE_S))
                (name,) = self._rng.choices(names, weights)
                task = group.create_task(self._one(name))
                if self._rng.random() < 0.6:
                    await asyncio.wait({task})

    async def _one(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        if await self.kinds[name][1]():
            self.done[name] += 1
            self.intervals.append(Interval(name, start_s, loop.time()))

    def alone(self, one: Takeover) -> bool:
        """Whether nothing else was broken between a job's loss and its take-over."""
        assert one.taken_s is not None
        found = [
            each
            for each in self.intervals
            if each.kind not in HARMLESS
            and each.start_s < one.at_s + one.taken_s
            and each.end_s > one.at_s
        ]
        return len(found) == 1

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[bool]:
        """False: something happens to it already."""
        free = what not in self._taken
        self._taken.add(what)
        try:
            yield free
        finally:
            if free:
                self._taken.remove(what)

    @contextlib.contextmanager
    def _replica(self) -> Iterator[Replica | None]:
        """One that nothing happens to yet, if there is any."""
        idle = [r for r in self._place.replicas if _name(r) not in self._taken]
        replica = self._rng.choice(idle) if idle else None
        with self._alone("none" if replica is None else _name(replica)):
            yield replica

    async def _up(self, replica: Replica) -> None:
        """It cannot start while there is no Redis for it, or no room; whoever runs services tries
        again."""
        while True:
            try:
                await replica.up()
            except RuntimeError as error:
                replica.kill()
                last = str(error).splitlines()[-1]
                self._say(f"replica {replica.number} did not start: {last}")
                await asyncio.sleep(1.0)
            else:
                return

    async def _kill_replica(self) -> bool:
        with self._replica() as replica:
            if replica is None:
                return False
            jobs = self._takeovers.lost(replica.pid, "killed")
            self._say(f"replica {replica.number} is killed, which drives {jobs} jobs")
            replica.kill()
            await asyncio.sleep(self._rng.uniform(0, 4))
            await self._up(replica)
            return True

    async def _kill_all(self) -> bool:
        mine = [r for r in self._place.replicas if _name(r) not in self._taken]
        with contextlib.ExitStack() as stack:
            for replica in mine:
                stack.enter_context(self._alone(_name(replica)))
            self._say(f"{len(mine)} replicas are killed at once")
            for replica in mine:
                replica.kill()
            await asyncio.gather(*(self._up(replica) for replica in mine))
        return True

    async def _sleep_replica(self) -> bool:
        with self._replica() as replica:
            if replica is None:
                return False
            jobs = self._takeovers.lost(replica.pid, "asleep")
            seconds = self._rng.uniform(LEASE_S + 2, 2 * LEASE_S)
            self._say(f"replica {replica.number} sleeps {seconds:.0f} s; it drives {jobs} jobs")
            replica.signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                replica.signal(signal.SIGCONT)
            self._takeovers.back(replica.pid)
            await asyncio.sleep(1.0)
            if replica.running is not None and replica.running.poll() is not None:
                self.wrong.append(f"replica {replica.number} ended after a sleep\n{replica.tail()}")
                await self._up(replica)
            return True

    async def _restart_replica(self) -> bool:
        with self._replica() as replica:
            if replica is None:
                return False
            jobs = self._takeovers.lost(replica.pid, "restarted")
            self._say(f"replica {replica.number} is restarted, which drives {jobs} jobs")
            code = await replica.stop()
            if code != 0:
                what = "does not end on SIGTERM" if code is None else f"ended with {code}"
                self.wrong.append(f"replica {replica.number} {what}\n{replica.tail()}")
            await self._up(replica)
            return True

    async def _kill_function(self) -> bool:
        found = await asyncio.to_thread(functions, self._place.mark)
        if not found:
            return False
        pids = self._rng.sample(found, min(len(found), self._rng.choice([1, 1, 3])))
        self._say(f"{len(pids)} functions of {len(found)} are killed")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return True

    async def _kill_redis(self) -> bool:
        with self._alone(REDIS) as free:
            if not free:
                return False
            seconds = self._rng.choice([0.0, 1.0, 3.0, 9.0])
            self._say(f"Redis is killed, for {seconds:.0f} s")
            self._place.redis.kill()
            await asyncio.sleep(seconds)
            await self._place.redis.up()
            return True

    async def _sleep_redis(self) -> bool:
        with self._alone(REDIS) as free:
            if not free:
                return False
            seconds = self._rng.uniform(1, 9)
            self._say(f"Redis sleeps {seconds:.0f} s")
            self._place.redis.signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                self._place.redis.signal(signal.SIGCONT)
            return True

    async def _cut(self, state: State) -> bool:
        with self._replica() as replica:
            if replica is None:
                return False
            seconds = self._rng.uniform(1, 2 * LEASE_S)
            if seconds > LEASE_S + 1:
                self._takeovers.lost(replica.pid, "cut off")
            self._say(f"replica {replica.number}: its link to Redis is {state} for {seconds:.0f} s")
            link = self._place.links[replica.number]
            link.set(state)
            try:
                await asyncio.sleep(seconds)
            finally:
                link.set("up")
            self._takeovers.back(replica.pid)
            return True

    async def _fill_data(self) -> bool:
        with self._alone(DATA) as free:
            if not free:
                return False
            await self._filled(self._place.data_disk, "the data")
            return True

    async def _fill_redis(self) -> bool:
        with self._alone(REDIS) as free:  # not killed meanwhile: see docs/faults.md
            if not free:
                return False
            await self._filled(self._place.redis_disk, "Redis")
            await asyncio.sleep(2.0)  # until it has written what it holds
            return True

    async def _filled(self, disk: Disk, whose: str) -> None:
        seconds = self._rng.uniform(3, 12)
        self._say(f"the disk of {whose} is full for {seconds:.0f} s")
        await asyncio.to_thread(disk.fill)
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(disk.free)


def _name(replica: Replica) -> str:
    return f"replica-{replica.number}"
