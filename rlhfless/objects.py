"""The object store: immutable objects under names, behind fsspec.

A directory by default, anything fsspec opens by URL (``s3://``, ``gs://``, ``memory://``). Writers
never overwrite: ``put`` writes a whole object atomically (write, then rename, on a directory), and
``create`` does so only if the name is free, which is the compare-and-swap that weight versions are
committed by. Readers therefore see whole objects or none.

A name that was taken by ``create`` survives a power cut, and so does what was ``put`` durably; on a
directory that costs syncs of the file and its folders (milliseconds on a disk), so other objects,
which can be made again, go without.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, BinaryIO, NamedTuple

from rlhfless.errors import InternalError, UserError, of_os_error

_TEMPORARY = ".tmp-"
_COPIED_BYTES = 1 << 20
"""Of a file, at once."""


class ObjectInfo(NamedTuple):
    """``used_s``: seconds since the epoch at which the object was written, or ``touch``ed where
    the store can note that; 0 if it does not say."""

    name: str
    num_bytes: int
    used_s: float


class ObjectStore:
    """Names are ``/``-separated paths below ``url``. Methods block; call them from threads.

    What the store's device or its owner refuses is raised as ``of_os_error`` has it.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UserError(f"cannot open the object store {url}: {error}") from error
        self._root = str(root).rstrip("/")
        self._local = "file" in _protocols(self._fs)

    def path(self, name: str) -> str:
        """The store's own path of an object; on a directory store a file path."""
        if not name or name.startswith("/") or ".." in name.split("/"):
            raise InternalError(f"bad object name {name!r}")
        return f"{self._root}/{name}"

    def local_path(self, name: str) -> str | None:
        """The file of an object where the store is a directory (so it can be mapped), else None."""
        return self.path(name) if self._local else None

    def put(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Write a whole object; an existing one of that name is replaced by the same content."""
        self._write(name, data, exclusive=False, durable=durable)

    def put_file(self, name: str, path: str, *, durable: bool = False) -> None:
        """As ``put``, with the content of a local file, which is never whole in memory. Raises
        ``FileNotFoundError``."""
        target = self.path(name)
        with _told(f"cannot write {target}"):
            if not self._local:
                self._fs.put_file(path, target)
                return
            with open(path, "rb") as file:
                _write_file(target, file, exclusive=False, durable=durable)
            if durable:
                _sync_folders(os.path.dirname(target), self._root)

    def sync(self, name: str) -> None:
        """Make a written object survive a power cut, as ``put`` with ``durable`` does at once.
        Raises ``FileNotFoundError``."""
        if not self._local:
            return
        path = self.path(name)
        with _told(f"cannot write {path}"):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            _sync_folders(os.path.dirname(path), self._root)

    def create(self, name: str, data: bytes) -> bool:
        """Write a whole object if the name is free; False, with nothing changed, if it is taken."""
        return self._write(name, data, exclusive=True, durable=True)

    def get(self, name: str) -> bytes:
        """Raises ``FileNotFoundError``."""
        path = self.path(name)
        with _told(f"cannot read {path}"):
            data: bytes = self._fs.cat_file(path)
        return data

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """Bytes ``[start, end)``. Raises ``FileNotFoundError``."""
        path = self.path(name)
        with _told(f"cannot read {path}"):
            data: bytes = self._fs.cat_file(path, start=start, end=end)
        return data

    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self.path(name)))

    def list(self, prefix: str, *, unfinished: bool = False) -> list[str]:
        """Names of the objects directly or deeply below ``prefix/``, sorted.

        With ``unfinished``, of what writers have not finished (or died over) as well.
        """
        try:
            found: Iterable[str] = self._fs.find(self.path(prefix))
        except FileNotFoundError:
            return []
        cut = len(self._fs._strip_protocol(self._root)) + 1
        return sorted(
            p[cut:] for p in found if unfinished or not p.rsplit("/", 1)[-1].startswith(_TEMPORARY)
        )

    def infos(self, prefix: str) -> tuple[ObjectInfo, ...]:
        """As ``list``, with sizes and ages."""
        try:
            found: dict[str, dict[str, Any]] = self._fs.find(self.path(prefix), detail=True)
        except FileNotFoundError:
            return ()
        cut = len(self._fs._strip_protocol(self._root)) + 1
        return tuple(
            ObjectInfo(path[cut:], int(info.get("size") or 0), _used_s(info))
            for path, info in sorted(found.items())
            if not path.rsplit("/", 1)[-1].startswith(_TEMPORARY)
        )

    def touch(self, name: str) -> None:
        """Note that an object is in use, where that costs nothing: on a directory store."""
        if self._local:
            with contextlib.suppress(OSError):  # gone, or not ours: it only ages faster
                os.utime(self.path(name))

    def delete(self, name: str) -> None:
        """Remove an object; a missing one is fine (another collector was faster). On a directory
        store folders that become empty go too."""
        path = self.path(name)
        with contextlib.suppress(FileNotFoundError), _told(f"cannot remove {path}"):
            self._fs.rm_file(path)
        if self._local:
            folder = os.path.dirname(path)
            with contextlib.suppress(OSError):  # not empty, or gone already
                while folder != self._root:
                    os.rmdir(folder)
                    folder = os.path.dirname(folder)

    def _write(self, name: str, data: bytes, *, exclusive: bool, durable: bool) -> bool:
        path = self.path(name)
        with _told(f"cannot write {len(data)} bytes to {path}"):
            if self._local:
                written = _write_file(path, data, exclusive=exclusive, durable=durable)
                if written and durable:
                    _sync_folders(os.path.dirname(path), self._root)
                return written
            if not exclusive:
                self._fs.pipe_file(path, data)
                return True
            try:
                self._fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True


@contextlib.contextmanager
def _told(failed: str) -> Iterator[None]:
    """A missing object passes through: that is an answer."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise of_os_error(failed, error) from error


def _write_file(path: str, data: bytes | BinaryIO, *, exclusive: bool, durable: bool) -> bool:
    folder, base = os.path.split(path)
    temporary = os.path.join(folder, f"{_TEMPORARY}{base}-{uuid.uuid4().hex}")
    try:
        with _open_in(folder, temporary) as file:
            if isinstance(data, bytes | bytearray | memoryview):
                file.write(data)
            else:
                shutil.copyfileobj(data, file, _COPIED_BYTES)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if not exclusive:
            os.replace(temporary, path)
            return True
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _sync_folders(folder: str, root: str) -> None:
    """Make the entries of ``folder`` and of the folders above it, up to the store's, durable."""
    while True:
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # collected meanwhile
            return
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some file systems sync no folders
                raise
        finally:
            os.close(handle)
        if folder in (root, "/"):
            return
        folder = os.path.dirname(folder)


def _open_in(folder: str, path: str) -> BinaryIO:
    """Open a new file, making its folder first, though ``delete`` removes folders it empties."""
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            return open(path, "wb")
        except FileNotFoundError:
            continue


def _used_s(info: dict[str, Any]) -> float:
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        when = info.get(name)
        if isinstance(when, datetime):
            return when.timestamp()
        if isinstance(when, int | float):
            return float(when)
        if isinstance(when, str):
            return datetime.fromisoformat(when).timestamp()
    return 0.0


def _protocols(fs: Any) -> tuple[str, ...]:
    protocol = fs.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
