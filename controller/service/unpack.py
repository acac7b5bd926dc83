"""Unpacking a tar that a user sent: regular files and folders, within bounds, inside the folder.

Members are written one by one as they are met, so that bounds hold for what is really there,
whatever a header says or a compressor hides. Links, devices and names that lead elsewhere are
refused; owners and special permissions do not come along.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Callable
from typing import BinaryIO, cast

from rlhfless.errors import UserError, of_os_error

MAX_MEMBERS = 10_000
MAX_DEPTH = 16
_MAX_READ_BYTES = 4 << 20
"""What ``tarfile`` may want at once. It reads names and extended headers whole, of any size that
the archive says they have; contents it copies in small pieces."""
_GZIP = b"\x1f\x8b"


def unpack(
    path: str, folder: str, *, param: str, max_bytes: int, stopped: Callable[[], bool]
) -> None:
    """Unpack the tar at ``path``, plain or compressed by gzip, into ``folder``, which is made.
    Blocks, and ends early when it is ``stopped``. Raises ``UserError`` naming ``param``, and as
    ``of_os_error`` for what the disk refuses."""

    def bad(why: str) -> UserError:
        return UserError(f"the tar cannot be unpacked: {why}", param=param)

    try:
        os.mkdir(folder)
        with open(path, "rb") as file:
            compressed = file.read(2) == _GZIP
        opened = gzip.open(path) if compressed else open(path, "rb")  # noqa: SIM115
        with (
            opened as content,
            tarfile.open(fileobj=cast(BinaryIO, _Careful(content)), mode="r:") as archive,
        ):
            _members(archive, folder, max_bytes, bad, stopped)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError) as error:
        hint = "send a plain tar or a .tar.gz"
        raise UserError(f"the tar cannot be unpacked: {error}", param=param, hint=hint) from error
    except _TooMuchError:
        raise bad("it has a header that is too large") from None
    except OSError as error:
        raise of_os_error("cannot unpack the tar", error) from error


def _members(
    archive: tarfile.TarFile,
    folder: str,
    max_bytes: int,
    bad: Callable[[str], UserError],
    stopped: Callable[[], bool],
) -> None:
    total = 0
    for count, member in enumerate(archive, 1):
        if stopped():
            return
        shown = member.name[:80]
        total += max(member.size, 0)
        if count > MAX_MEMBERS:
            raise bad(f"it has more than {MAX_MEMBERS:,} files")
        if total > max_bytes or member.size < 0:
            raise bad(f"it holds more than {max_bytes:,} bytes")
        if not (member.isreg() or member.isdir()):
            raise bad(f"{shown!r} is neither a file nor a folder")
        if member.issparse():
            raise bad(f"{shown!r} is a file with holes")
        if member.name.count("/") > MAX_DEPTH:
            raise bad(f"{shown!r} lies too deep")
        if os.path.isabs(member.name) or ".." in member.name.split("/") or "\0" in member.name:
            raise bad(f"{shown!r} lies outside of it")
        member.mode = 0o755 if member.isdir() else 0o644
        archive.extract(member, folder, filter="data")


class _TooMuchError(Exception):
    pass


class _Careful:
    """The archive's bytes, never very many at once."""

    def __init__(self, inner: BinaryIO | gzip.GzipFile) -> None:
        self._inner = inner

    def read(self, count: int) -> bytes:
        if not 0 <= count <= _MAX_READ_BYTES:
            raise _TooMuchError
        return self._inner.read(count)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        return self._inner.seek(position, whence)

    def tell(self) -> int:
        return self._inner.tell()
