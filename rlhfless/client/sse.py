"""Server-Sent Events out of bytes, however they were cut (the WHATWG HTML standard, 9.2.6).

An event is told when its blank line has come, so one that a cut connection left half said is not
told at all; whoever resumes after the last id gets it whole.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """``id``: the last that was said, by this event or one before it."""

    data: str
    event: str = "message"
    id: str = ""


class Parser:
    """Of one connection. ``retry_ms``: when its server wants to be asked again, if it said so."""

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._rest = ""
        self._id = ""
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Message]:
        """The messages that ``chunk`` completes."""
        text = self._rest + self._decode(chunk)
        # A CR at the end may be the first half of a CRLF.
        held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n")
        *lines, rest = text.split("\n")
        self._rest = rest + held
        return [message for line in lines if (message := self._line(line)) is not None]

    def _line(self, line: str) -> Message | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "event":
                self._event = value
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if value.isascii() and value.isdigit():
                self.retry_ms = int(value)
        return None

    def _dispatch(self) -> Message | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        if not data:
            return None
        return Message("\n".join(data), event or "message", self._id)
