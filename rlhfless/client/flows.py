"""Conversations with the service, written once for both clients.

A *flow* is a generator that does no I/O: it yields what it wants done (a ``Command``), is sent what
came of it, and returns its result. ``drivers`` perform the commands, waiting or awaiting;
``methods`` makes methods of flows; ``requests`` has the flows that others are made of.

What a broken connection raises reaches the flow as ``TransientError`` at the ``yield``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from rlhfless.errors import RlhflessError

T = TypeVar("T")

READ_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Upload:
    """A multipart body: plain fields, and the file at ``path`` under ``filename``."""

    fields: Mapping[str, str]
    path: str
    filename: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """``read_timeout_s``: longest silence before the connection counts as broken."""

    method: str
    path: str
    params: Mapping[str, str | int | bool] = field(default_factory=dict)
    body: Any = None
    """Sent as JSON, if not None."""
    upload: Upload | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    read_timeout_s: float = READ_TIMEOUT_S


@dataclass(frozen=True)
class Open:
    """Send the request; replied to with a ``Head``. What was open before is closed."""

    request: Request


@dataclass(frozen=True)
class More:
    """Replied to with the next bytes of what is open, or None at its end."""


@dataclass(frozen=True)
class Again:
    """Wait before attempt ``attempt + 1``. Raises ``error`` into the flow if that is one too many.
    ``after_s``: the service asked for this patience."""

    attempt: int
    error: RlhflessError
    after_s: float | None = None


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Work:
    """Call ``function``, which uses the disk or computes; replied to with what it returns. What it
    raises is raised into the flow."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class Item(Generic[T]):
    """Hand a value to whoever iterates."""

    value: T


@dataclass(frozen=True)
class Head:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""


Command: TypeAlias = Open | More | Again | Pause | Work
Flow: TypeAlias = Generator[Command, Any, T]
Items: TypeAlias = Generator[Command | Item[T], Any, None]


def visit(items: Items[T], enough: Callable[[T], bool]) -> Flow[None]:
    """Show each item to ``enough`` until it answers True."""
    with closing(items):
        try:
            command = items.send(None)
            while True:
                if isinstance(command, Item):
                    if enough(command.value):
                        return
                    command = items.send(None)
                    continue
                try:
                    reply = yield command
                except (RlhflessError, OSError) as error:
                    command = items.throw(error)
                else:
                    command = items.send(reply)
        except StopIteration:
            return
