"""Up to which line the log of a container has been read. Pure.

Kubernetes dates every line to the nanosecond, but takes up a log by whole seconds (``sinceTime``):
a reader that comes back is told some lines again, and knows them by their dates.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

MAX_LINE_BYTES = 1 << 16
"""Of a longer line the beginning is kept."""
_NS = 10**9


class LogPlace:
    """``since_s``: Unix time; lines before it are known."""

    def __init__(self, since_s: float = 0.0) -> None:
        self._last_ns = int(since_s * _NS)
        self._told_at_last = 0
        self._known_at_last = 0
        self._catching_up = True

    @property
    def since(self) -> str:
        """For ``sinceTime``; empty: from the beginning."""
        if not self._last_ns:
            return ""
        return datetime.fromtimestamp(self._last_ns // _NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def begin(self) -> None:
        """The log is read again, from ``since``."""
        self._known_at_last = self._told_at_last
        self._catching_up = True

    def take(self, line: bytes) -> bytes | None:
        """What was said in a dated line; None: that is known already.

        Only what comes before the first new line can be known: a clock that is set back hides
        nothing.
        """
        stamp, _, text = line.partition(b" ")
        try:
            at_ns = parse_ns(stamp.decode())
        except ValueError:
            return line
        if self._catching_up:
            if at_ns < self._last_ns:
                return None
            if at_ns == self._last_ns and self._known_at_last:
                self._known_at_last -= 1
                return None
            self._catching_up = False
        self._told_at_last = self._told_at_last + 1 if at_ns == self._last_ns else 1
        self._last_ns = at_ns
        return text


class LineSplitter:
    """Lines of a stream of bytes, in bounded memory."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Whole lines, without their ends."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._skipping:
                yield line[:MAX_LINE_BYTES]
            self._skipping = False
        if len(rest) > MAX_LINE_BYTES:
            if not self._skipping:
                yield rest[:MAX_LINE_BYTES]
            rest, self._skipping = b"", True
        self._rest = rest

    @property
    def rest(self) -> bytes:
        """What was said after the last line's end."""
        return b"" if self._skipping else self._rest


def parse_ns(stamp: str) -> int:
    """Unix time in nanoseconds of a date as Go writes it (RFC 3339, up to nine decimals). Raises
    ``ValueError``."""
    head, dot, tail = stamp.partition(".")
    if not dot:
        return _second(head) * _NS
    digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
    if not 0 < len(digits) <= 9:
        raise ValueError(f"{stamp!r} is no date")
    return _second(head + tail[len(digits) :]) * _NS + int(digits.ljust(9, "0"))


def _second(text: str) -> int:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    return int(at.timestamp())
