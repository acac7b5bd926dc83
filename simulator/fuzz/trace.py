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

    def lines(self) -> Iterable[str]:
        for at_s, event, details in self._events:
            yield f"{at_s:12.6f}  {event}  {' '.join(map(str, details))}".rstrip()

    def digest(self) -> str:
        """Equal for equal traces, to the byte; times count in full."""
        found = hashlib.blake2b(digest_size=8)
        for event in self._events:
            found.update(repr(event).encode())
        return found.hexdigest()
