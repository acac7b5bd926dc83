"""Inputs of jobs on this machine's disk, each made once, whoever needs it at the same time.

    <folder>/<key>/             an entry, whole
    <folder>/<key>.part-<id>/   one that is being made, or whose maker died
    <folder>/<key>.lock         held shared by whoever uses the entry, exclusively by who makes or
                                removes it; its time is the entry's last use

Locks are the system's (``flock``): they end with the process that holds them, and replicas that
share the folder share them. Entries beyond ``max_bytes`` that nobody uses go, those not used for
longest first.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

from rlhfless.errors import of_os_error

POLL_S = 0.1
"""Between looks at an entry that somebody else makes."""
_LOCK, _PART = ".lock", ".part-"

Make = Callable[[str], Awaitable[None]]
"""Fills the folder it is given, which is empty."""
T = TypeVar("T")


class InputCache:
    """Raises as ``of_os_error`` for what the disk refuses."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    @asynccontextmanager
    async def held(self, key: str, make: Make) -> AsyncIterator[str]:
        """The folder of an entry, made if need be, which stays while it is held. Raises what
        ``make`` raises; then there is no entry."""
        entry = os.path.join(self._folder, key)
        lock = await self._acquire(entry, make)
        try:
            yield entry
        finally:
            os.close(lock)

    async def _acquire(self, entry: str, make: Make) -> int:
        while True:
            with _told(f"cannot use {self._folder}"):
                os.makedirs(self._folder, exist_ok=True)
                shared = _lock(entry + _LOCK, fcntl.LOCK_SH)
                if shared is not None and _is_there(entry):
                    os.utime(shared)
                    return shared
                _release(shared)
                alone = _lock(entry + _LOCK, fcntl.LOCK_EX)
            if alone is None:
                await asyncio.sleep(POLL_S)
                continue
            try:
                if not _is_there(entry):
                    await self._make(entry, make)
            finally:
                os.close(alone)

    async def _make(self, entry: str, make: Make) -> None:
        """With the entry's lock: nobody else writes parts of it."""
        await asyncio.to_thread(_remove_parts, entry)
        part = f"{entry}{_PART}{uuid.uuid4().hex}"
        try:
            with _told(f"cannot write to {self._folder}"):
                os.mkdir(part)
            await make(part)
            with _told(f"cannot write to {self._folder}"):
                os.rename(part, entry)
        finally:
            await to_end(lambda _: shutil.rmtree(part, ignore_errors=True))
        await to_end(lambda _: self.trim(keep=entry))

    def trim(self, keep: str | None = None) -> None:
        """Remove entries that nobody uses until the rest is within bounds. Blocks."""
        used = [(_used_s(entry), entry, _num_bytes(entry)) for entry in self._entries()]
        total = sum(num_bytes for *_, num_bytes in used)
        for _, entry, num_bytes in sorted(used):
            if total <= self._max_bytes:
                return
            if entry != keep and self._removed(entry):
                total -= num_bytes

    def _removed(self, entry: str) -> bool:
        lock = _lock(entry + _LOCK, fcntl.LOCK_EX)
        if lock is None:
            return False
        try:
            with contextlib.suppress(FileNotFoundError):  # somebody else removed it
                os.rename(entry, f"{entry}{_PART}{uuid.uuid4().hex}")
            _remove_parts(entry)
            os.unlink(entry + _LOCK)
        finally:
            os.close(lock)
        return True

    def _entries(self) -> list[str]:
        with os.scandir(self._folder) as found:
            return [each.path for each in found if each.is_dir() and _PART not in each.name]


async def to_end(work: Callable[[threading.Event], T]) -> T:
    """Run ``work`` in a thread. Where this is cancelled the event is set, and what the thread still
    does is waited for: it writes where somebody else may want to write next."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # it has been stopped: what it says of that is no news
        raise


def _lock(path: str, kind: int) -> int | None:
    """A descriptor that holds the lock until it is closed, or None if others hold it."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            # Whoever removed the entry has removed the lock: it is another file's now, or nobody's.
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_there(entry: str) -> bool:
    return os.path.isdir(entry)


def _release(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _remove_parts(entry: str) -> None:
    folder, name = os.path.split(entry)
    for each in os.listdir(folder):
        if each.startswith(name + _PART):
            shutil.rmtree(os.path.join(folder, each), ignore_errors=True)


def _used_s(entry: str) -> float:
    try:
        return os.stat(entry + _LOCK).st_mtime
    except FileNotFoundError:
        return 0.0


def _num_bytes(entry: str) -> int:
    total = 0
    for folder, _, names in os.walk(entry):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


@contextlib.contextmanager
def _told(failed: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise of_os_error(failed, error) from error
