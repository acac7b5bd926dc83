"""Pages of lists that are short enough to be had whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from rlhfless.errors import NotFoundError


class _Named(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=_Named)


def part_after(
    entries: Sequence[T], after: str | None, limit: int, kind: str
) -> tuple[Sequence[T], bool]:
    """At most ``limit`` entries that follow the one with the id ``after`` (None: the first ones),
    and whether there are more. Raises ``NotFoundError``."""
    start = 0
    if after is not None:
        ids = [entry.id for entry in entries]
        if after not in ids:
            raise NotFoundError(f"there is no {kind} {after[:80]!r}", param="after")
        start = ids.index(after) + 1
    return entries[start : start + limit], len(entries) > start + limit
