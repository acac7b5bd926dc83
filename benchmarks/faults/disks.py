"""Small disks of their own that can become full: tmpfs mounts, which need privileges."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOM_BYTES = 2 << 30
"""A bound, not a reservation."""
ATTEMPTS = 50
"""Who writes all the time writes between two looks."""


class Disk:
    """``with Disk(folder) as disk``; ``disk.mounted`` is false where that was not allowed, and then
    ``folder`` is one like any other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def __enter__(self) -> Disk:
        words = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", str(self.folder)]
        done = subprocess.run(words, capture_output=True, check=False)
        self.mounted = done.returncode == 0
        return self

    def __exit__(self, *_: object) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self) -> None:
        """From now on there is no room but what is freed; nothing is written for that."""
        for _ in range(ATTEMPTS):
            found = os.statvfs(self.folder)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            if self._resized(max(used, found.f_frsize)):
                return
        raise RuntimeError(f"{self.folder} grows too fast to be filled")

    def free(self) -> None:
        if not self._resized(ROOM_BYTES):
            raise RuntimeError(f"{self.folder} cannot be given room")

    def _resized(self, num_bytes: int) -> bool:
        """False where more than that is in use by now."""
        words = ["mount", "-o", f"remount,size={num_bytes}", str(self.folder)]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
