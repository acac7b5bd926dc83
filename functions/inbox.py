"""Changes to a running call on their way from the event loop to the handler's thread.

The loop offers them, the handler takes them between units of work and closes the inbox when it is
about to end. A change is either refused or taken, never lost: closing and the last look inside are
one step. Only a call that fails takes what it was offered with it.
"""

from __future__ import annotations

import threading

from rlhfless.messages import SteerRequest


class Inbox:
    """Refuses everything until it is opened and after it is closed. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._shut = False
        self._waiting: list[SteerRequest] = []
        self._last = 0

    def open(self) -> None:
        with self._lock:
            self._open = not self._shut

    def offer(self, change: SteerRequest) -> bool:
        """Whether the handler takes it, or took it before: changes are numbered from 1 without
        gaps, and a repeat is acknowledged even when the inbox is closed."""
        with self._lock:
            if 1 <= change.number <= self._last:
                return True
            if not self._open or change.number != self._last + 1:
                return False
            self._last = change.number
            self._waiting.append(change)
            return True

    def take(self) -> list[SteerRequest]:
        """What came since the last time, in order."""
        if not self._waiting:  # asked every iteration, rarely something
            return []
        with self._lock:
            taken, self._waiting = self._waiting, []
            return taken

    def close(self) -> list[SteerRequest]:
        """Close it if nothing waits inside; otherwise what does, and it stays open."""
        with self._lock:
            taken, self._waiting = self._waiting, []
            if not taken:
                self._open = False
            return taken

    def shut(self) -> None:
        """Refuse everything new for good: the handler is gone or about to be. It can still take
        what is inside."""
        with self._lock:
            self._open, self._shut = False, True
