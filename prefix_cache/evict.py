"""What the object store's keys and values no longer need, deleted by policy."""

from __future__ import annotations

import re
from typing import NamedTuple

from rlhfless.objects import ObjectStore

_NAME = re.compile(r"^kv/.+/v(\d{6,})/[^/]+$")


class Evicted(NamedTuple):
    """``kept_bytes`` are what is left of the job's entries."""

    entries: int
    num_bytes: int
    kept_bytes: int


def evict(objects: ObjectStore, job: str, *, keep_version: int, max_bytes: int) -> Evicted:
    """Delete a job's entries of versions below ``keep_version``, then the least recently used until
    no more than ``max_bytes`` are left.

    Blocks. Safe beside readers and writers: a reader that comes too late computes, and a writer
    whose folder goes stores nothing. What dead writers left of old versions goes too.
    """
    stale = {
        name
        for name in objects.list(f"kv/{job}", unfinished=True)
        if (match := _NAME.match(name)) is not None and int(match[1]) < keep_version
    }
    found = objects.infos(f"kv/{job}")
    kept = sum(info.num_bytes for info in found if info.name not in stale)
    entries = num_bytes = 0
    for info in sorted(found, key=lambda info: info.used_s):
        if info.name not in stale:
            if kept <= max_bytes:
                continue
            kept -= info.num_bytes
        stale.add(info.name)
        entries += 1
        num_bytes += info.num_bytes
    for name in stale:
        objects.delete(name)
    return Evicted(entries, num_bytes, kept)
