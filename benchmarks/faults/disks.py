"""Small disks of their own that can become full: tmpfs mounts, which need privileges."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOM_BYTES = 2 << 30
"""A bound, not a reservation."""


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
        found = os.statvfs(self.folder)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        self._resize(max(used, found.f_frsize))

    def free(self) -> None:
        self._resize(ROOM_BYTES)

    def _resize(self, num_bytes: int) -> None:
        options = f"remount,size={num_bytes}"
        subprocess.run(["mount", "-o", options, str(self.folder)], check=True)
