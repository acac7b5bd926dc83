"""The lines that function instances write to their files, as they write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.platforms.local_logs import LogSlice
from controller.service.logs import Line

MAX_READ_BYTES = 1 << 20
"""Of a slice, at once. Who writes faster has the oldest of it left out."""
MAX_CHARS = 4096
"""Of a line; the rest is cut."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal would obey."""


def tidy(text: str, redact: Callable[[str], str]) -> str:
    """A line fit to be shown: of what was written over itself the last, without secrets (before it
    is cut: half a secret is one), cut, and in characters that can be sent."""
    text = text.rstrip("\r\n").rpartition("\r")[2]
    text = redact(_CONTROL.sub("", text).encode("utf-8", "replace").decode())
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


@dataclass
class _Reading:
    """``at``: the byte to go on from. ``cut``: the beginning of the line there was told already."""

    at: int
    cut: bool = False
    done: bool = False


class LogFiles:
    """Reads the slices that it is shown, each byte once. Blocks; call it in a thread."""

    def __init__(self) -> None:
        self._readings: dict[tuple[str, int], _Reading] = {}

    def read(self, slices: Sequence[LogSlice]) -> tuple[list[Line], int, list[LogSlice]]:
        """What is new: whole lines, how many bytes were left out, and those slices of which
        nothing is to come."""
        lines: list[Line] = []
        left_out = 0
        done = []
        known = self._readings
        self._readings = {}
        for part in slices:
            key = (part.path, part.start)
            reading = self._readings[key] = known.get(key) or _Reading(part.start)
            if reading.done:
                continue
            try:
                with open(part.path, "rb") as file:
                    size = file.seek(0, 2)
                    end = size if part.end is None else min(size, part.end)
                    if end - reading.at > MAX_READ_BYTES:
                        left_out += end - MAX_READ_BYTES - reading.at
                        reading.at, reading.cut = end - MAX_READ_BYTES, True
                    file.seek(reading.at)
                    data = file.read(max(0, end - reading.at))
            except OSError:  # not there yet, or cleared away
                data = b""
            lines += self._lines(part, reading, data)
            if part.end is not None:
                done.append(part)
                reading.done = True
        return lines, left_out, done

    def _lines(self, part: LogSlice, reading: _Reading, data: bytes) -> list[Line]:
        whole, newline, rest = data.rpartition(b"\n")
        texts = whole.split(b"\n") if newline else []
        reading.at += len(whole) + len(newline)
        if texts and reading.cut:
            texts, reading.cut = texts[1:], False
        if rest and (part.end is not None or len(rest) >= MAX_READ_BYTES // 2):
            # No newline is to come, or none is in sight.
            reading.at += len(rest)
            if not reading.cut:
                texts.append(rest)
            reading.cut = True
        return [Line(part.instance, text.decode(errors="replace")) for text in texts]
