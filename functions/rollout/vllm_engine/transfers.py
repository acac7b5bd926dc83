"""Work of the KV tier with the object store, beside the engine's steps.

Threads do it; a job is a list of parts. A store that does not answer must never hold up the engine:
a job in which nothing has moved for a while is given up, and its parts, whenever they wake, leave
the engine's memory alone. Then the store is left alone for a while, too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

THREADS = 16
"""Enough to hide the latency of a remote store."""
STALL_S = 5.0
ALONE_S = 30.0


class Threads:
    """Daemons, so that one that hangs does not keep the process alive."""

    def __init__(self, number: int = THREADS) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._number = number
        for _ in range(number):
            threading.Thread(target=self._work, name="kv-tier", daemon=True).start()

    def do(self, task: Callable[[], None]) -> None:
        """``task`` raises nothing."""
        self._tasks.put(task)

    def close(self) -> None:
        for _ in range(self._number):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


@dataclass
class Job(Generic[T]):
    """``parts`` are to be done, ``done`` are. Guarded by ``lock``; a part moves bytes from or to
    the engine's memory under it, and only while not ``given_up``."""

    parts: Collection[T]
    begun_s: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: list[T] = field(default_factory=list)
    failed: int = 0
    given_up: bool = False
    moved_s: float = 0.0

    def __post_init__(self) -> None:
        self.moved_s = self.begun_s

    def carry(self, part: T, move: Callable[[], None]) -> bool:
        """Do a part; False if the job has been given up."""
        with self.lock:
            if self.given_up:
                return False
            move()
            self.done.append(part)
            self.moved_s = time.monotonic()
            return True

    def fail(self) -> None:
        with self.lock:
            self.failed += 1
            self.moved_s = time.monotonic()

    def over(self, stall_s: float) -> bool:
        """Whether all parts are done or failed, or the job stalls: then it is given up here."""
        with self.lock:
            if len(self.done) + self.failed == len(self.parts):
                return True
            self.given_up = self.given_up or time.monotonic() - self.moved_s > stall_s
            return self.given_up

    def give_up(self) -> None:
        with self.lock:
            self.given_up = True


class Patience:
    """Whether the store is asked at all; after it stalled, not for a while."""

    def __init__(self, stall_s: float = STALL_S, alone_s: float = ALONE_S) -> None:
        self.stall_s = stall_s
        self._alone_s = alone_s
        self._alone_until = -float("inf")

    @property
    def answers(self) -> bool:
        return time.monotonic() >= self._alone_until

    def lost(self) -> None:
        self._alone_until = time.monotonic() + self._alone_s
