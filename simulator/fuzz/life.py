"""A controller's life: everything it does to the world passes here, and here it can be killed.

What a controller knows dies with it, so to kill it at any await point is to kill it before or after
any one of its effects. Whatever a killed one still tries while its tasks unwind has no effect.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass, field

from rlhfless.errors import TransientError
from simulator.fuzz.trace import Trace


class Killed(TransientError):
    """Raised into what a dead controller tries; nobody is there to see it."""


@dataclass
class Life:
    """``kill_at``: the crossing at which it dies; 0: none. ``task`` runs the controller."""

    number: int
    trace: Trace
    kill_at: int = 0
    alive: bool = True
    cancelled: bool = False
    crossings: int = 0
    task: asyncio.Task[object] | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def cross(self, seam: str, *details: object) -> None:
        """The controller is about to do something, or has just done it. Raises ``Killed``."""
        if not self.alive:
            raise Killed("the controller is dead")
        self.crossings += 1
        self.trace.note(f"[{self.number}] {seam}", *details)
        if self.crossings == self.kill_at:
            self.kill()
            raise Killed("the controller is dead")

    def kill(self) -> None:
        """As SIGKILL does: no clean-up reaches the world."""
        if self.alive:
            self.alive = False
            self.trace.note(f"[{self.number}] KILLED")
            self._cancel()

    def stop(self) -> None:
        """As Ctrl-C does: it may clean up."""
        self.trace.note(f"[{self.number}] STOPPED")
        self._cancel()

    def _cancel(self) -> None:
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()


current_life: ContextVar[Life | None] = ContextVar("current_life", default=None)
"""Whose code runs: threads of a dead controller do nothing."""
