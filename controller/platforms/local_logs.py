"""Whose lines are whose in the log files of a host's instances.

An instance writes to one file all its life, whichever job it works for. A ``LogSlice`` is the part
written while one platform owned it; slices of a file follow each other and never overlap. An
instance is handed over only when it has nothing to do, and writes unbuffered, so a slice ends where
a line does.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class LogSlice:
    """Bytes ``[start, end)`` of a file; ``end`` is None while the instance writes on."""

    instance: str
    path: str
    start: int
    end: int | None = None


class LogFiles:
    """The files in ``folder``. With ``keep`` they stay for a person to read; else each is deleted
    when no platform refers to it any more, and ``folder`` holds no log files but these."""

    def __init__(self, folder: str, *, keep: bool) -> None:
        self.folder = os.path.abspath(folder)
        self._keep = keep
        self._references: Counter[str] = Counter()

    def make_folder(self) -> None:
        """Also clears what an earlier host left that could not. Raises ``OSError``."""
        os.makedirs(self.folder, exist_ok=True)
        self.clear()

    def path(self, name: str) -> str:
        return os.path.join(self.folder, f"{name}.log")

    def begin(self, instance: str, name: str | None = None) -> LogSlice:
        """What the instance writes from now on, to the file ``name`` if that is not its own name.
        The file need not be there yet."""
        path = self.path(name or instance)
        self._references[path] += 1
        return LogSlice(instance, path, _size(path))

    def end(self, part: LogSlice) -> LogSlice:
        return LogSlice(part.instance, part.path, part.start, max(part.start, _size(part.path)))

    def drop(self, parts: Iterable[LogSlice]) -> None:
        """Nobody will ask for these any more."""
        for part in parts:
            self._references[part.path] -= 1
            if self._references[part.path] <= 0:
                del self._references[part.path]
                if not self._keep:
                    _remove(part.path)

    def clear(self) -> None:
        if not self._keep:
            for path in glob.glob(os.path.join(glob.escape(self.folder), "*.log")):
                _remove(path)


def tail(path: str, lines: int, start: int = 0) -> str:
    """The last lines of a text file from byte ``start`` on, indented; empty if there are none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - 8192))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
