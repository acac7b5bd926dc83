"""What happened in a fuzzed job, in order: proof that a seed replays, and a failure's story."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Any


class Violation(AssertionError):
    """Something happened that must never happen, whatever is broken."""


class Trace:
    """Events with their virtual time. Details must say the same in every run: no addresses, no
    wall clock."""

    def __init__(self) -> None:
        self._events: list[tuple[float, str, tuple[Any, ...]]] = []

    def __len__(self) -> int:
        return len(self._events)

    def note(self, event: str, *details: Any) -> None:
        self._events.append((asyncio.get_running_loop().time(), event, details))

    def lines(self, first: int = 0) -> Iterable[str]:
        """From the ``first``-th on."""
        for at_s, event, details in self._events[first:]:
            yield f"{at_s:12.6f}  {event}  {' '.join(map(str, details))}".rstrip()

    def digest(self) -> str:
        """Equal for equal traces, to the byte; times count in full."""
        return hashlib.blake2b(repr(self._events).encode(), digest_size=8).hexdigest()
