"""What a function's code sees of a call, and what the shell sees of a function.

A function is an object with one handler for each request type it serves. A handler is a plain
generator: the shell runs it in a worker thread and sends what it yields as frames, the terminal
frame last. The handler holds no per-call state beyond its own life; the object may keep caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from functions.inbox import Inbox
from functions.ranks import ALONE, Ranks
from rlhfless.engines import PLAIN, EngineOptions
from rlhfless.messages import Frame, Request, SteerRequest
from rlhfless.objects import ObjectStore

StopReason = Literal["abort", "deadline", "drain"]


@dataclass(frozen=True)
class FunctionConfig:
    """What an instance is given at start. ``workdir`` is scratch space that goes with it;
    ``engine`` is for rollout; ``workers`` processes make up the instance, in which this one has its
    place in ``ranks``."""

    threads: int = 1
    accelerator: str = "cpu"
    workdir: str = "."
    engine: EngineOptions = PLAIN
    workers: int = 1
    ranks: Ranks = ALONE


@dataclass
class CallContext:
    """One call's limits. ``deadline`` is on ``time.monotonic()``; handlers that can hand work back
    poll ``stop_reason`` between units of work and end early with what they have.

    A handler whose call can be changed while it runs opens ``inbox`` first, polls ``take`` between
    units of work, and ends only after ``close_inbox`` gave nothing.
    """

    store: ObjectStore
    deadline: float
    load_s: float = field(default=0.0, init=False)
    """Seconds the handler spent on loading what a warm instance has: the price of a fresh one."""
    inbox: Inbox = field(default_factory=Inbox, init=False)
    _stop: StopReason | None = field(default=None, init=False)

    def stop(self, reason: StopReason) -> None:
        """Ask the handler to end; the first reason stays."""
        if self._stop is None:
            self._stop = reason

    @property
    def remaining_s(self) -> float:
        """Seconds to the deadline, at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def stop_reason(self) -> StopReason | None:
        if self._stop is None and time.monotonic() >= self.deadline:
            self._stop = "deadline"
        return self._stop

    def take(self) -> list[SteerRequest]:
        """Changes to the call that came since the last time, in order."""
        return self.inbox.take()

    def close_inbox(self) -> list[SteerRequest]:
        """Before the handler ends: changes that came at the last moment, to be carried out first;
        if there are none, further ones are refused from now on."""
        return self.inbox.close()


Handler = Callable[[Any, CallContext], Iterator[Frame]]


class Function(Protocol):
    """A function's code: handlers by request type. ``close`` frees what the object holds."""

    handlers: Mapping[type[Request], Handler]

    def close(self) -> None: ...
