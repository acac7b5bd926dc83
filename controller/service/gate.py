"""A bound on how many requests do something expensive on this replica at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlhfless.errors import CapacityError


class Gate:
    """At most ``limit`` are inside; nobody waits, for whoever waits occupies a connection."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._inside = 0

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Raises ``CapacityError`` if it is full."""
        if self._inside >= self._limit:
            raise CapacityError(
                f"{self._inside} {self._what} are under way here, which is as many as may be",
                hint="try again in some seconds",
            )
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
