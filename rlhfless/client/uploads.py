"""Files of this machine as the service takes them: read, packed, hashed, sent once."""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from rlhfless import rest
from rlhfless.client.flows import Flow, Request, Upload, Work
from rlhfless.client.requests import ask, path
from rlhfless.errors import UserError, of_os_error

SEND_TIMEOUT_S = 600.0
"""The service answers when it has put the whole file away."""


@dataclass(frozen=True)
class Packed:
    """A file ready to be sent. ``path`` is temporary if ``made``."""

    path: str
    filename: str
    sha256: str
    made: bool = False


def sent(packed: Packed, purpose: rest.Purpose) -> Flow[rest.File]:
    upload = Upload({"purpose": purpose}, packed.path, packed.filename)
    request = Request(
        method="POST", path=path("files"), upload=upload, read_timeout_s=SEND_TIMEOUT_S
    )
    return ask(rest.File, request)


def send(source: str, purpose: rest.Purpose) -> Flow[rest.File]:
    """Send a file, or a folder as a tar."""
    packed: Packed = yield Work(lambda: pack(source))
    try:
        return (yield from sent(packed, purpose))
    finally:
        discard(packed)


def pack(source: str) -> Packed:
    """A file as it is; of a folder, a tar of everything in it but what is hidden. Raises
    ``UserError``."""
    try:
        if not os.path.isdir(source):
            return Packed(source, os.path.basename(source), sha256_of(source))
        return pack_members(os.path.basename(os.path.abspath(source)), _members(source))
    except OSError as error:
        raise of_os_error(f"cannot read {source}", error) from error


def pack_members(name: str, members: Mapping[str, str]) -> Packed:
    """A tar ``<name>.tar`` of files, by their names in it; the same files give the same bytes,
    whenever and by whomever it is made. Raises ``OSError``."""
    handle, target = tempfile.mkstemp(prefix="rlhfless-", suffix=".tar")
    try:
        with (
            os.fdopen(handle, "wb") as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for member, source in sorted(members.items()):
                info = tarfile.TarInfo(member)
                with open(source, "rb") as content:
                    info.size = os.fstat(content.fileno()).st_size
                    info.mode = 0o644
                    tar.addfile(info, content)
        return Packed(target, f"{name}.tar", sha256_of(target), made=True)
    except BaseException:
        os.unlink(target)
        raise


def discard(packed: Packed) -> None:
    if packed.made:
        os.unlink(packed.path)


def _members(folder: str) -> dict[str, str]:
    """The files below a folder, by their names there. Links to files are followed, as a model in
    the Hub's cache has them; links to folders are not."""
    found = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            source = os.path.join(parent, name)
            if not name.startswith(".") and os.path.isfile(source):
                found[os.path.relpath(source, folder).replace(os.sep, "/")] = source
    if not found:
        raise UserError(f"there is nothing in {folder}")
    return found


def sha256_of(source: str) -> str:
    with open(source, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
