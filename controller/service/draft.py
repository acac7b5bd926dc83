"""A file on its way into the service: on this replica's disk until it is whole.

What is not finished leaves nothing behind: the draft goes when its ``with`` ends, and one whose
replica died goes when another is made a day later.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from types import TracebackType
from typing import Self

from controller.service.refusals import TooLargeError
from rlhfless.errors import of_os_error

_PREFIX = "draft-"
_DEAD_AFTER_S = 24 * 3600
"""A draft that is being written is younger: each write renews its time."""


class Draft:
    """``path``: where it lies. Methods block for the time of a disk write."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        """Raises as ``of_os_error``."""
        self.max_bytes = max_bytes
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0
        try:
            os.makedirs(folder, exist_ok=True)
            _sweep(folder)
            handle, self.path = tempfile.mkstemp(prefix=_PREFIX, dir=folder)
        except OSError as error:
            raise of_os_error(f"cannot write to {folder}", error) from error
        self._file = open(handle, "wb", buffering=0)  # noqa: SIM115  (closed with the draft)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def write(self, piece: bytes) -> None:
        """Raises ``TooLargeError`` for the first byte too many."""
        self.num_bytes += len(piece)
        if self.num_bytes > self.max_bytes:
            raise TooLargeError(f"a file may have {self.max_bytes:,} bytes", param="file")
        self._sha256.update(piece)
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise of_os_error("cannot keep the file", error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def _sweep(folder: str) -> None:
    before = time.time() - _DEAD_AFTER_S
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(_PREFIX):
                continue
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < before:
                    os.unlink(entry.path)
