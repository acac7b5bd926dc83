"""A checkpoint as a folder that ``transformers`` loads.

Files are written to a folder beside it, ``<folder>.partial-<which checkpoint>``, which is renamed
when all are there and their checksums are right: a folder under its own name is whole. A file that
broke off is gone on with where it ended, by this call or the next; one whose checksum is wrong is
fetched once more.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import quote

from rlhfless import rest
from rlhfless.client.flows import Again, Flow, More, Request, Work, visit
from rlhfless.client.requests import asked, at_once, pages
from rlhfless.client.uploads import sha256_of
from rlhfless.errors import (
    ConflictError,
    InternalError,
    NotFoundError,
    RlhflessError,
    TransientError,
    of_os_error,
)

BUFFER_BYTES = 1 << 20
"""Written at once."""


def downloaded(checkpoints: str, folder: str, step: int | None) -> Flow[str]:
    """``checkpoints``: the path of the job's list of them."""
    chosen = yield from _chosen(checkpoints, step)
    for file in chosen.files:
        _check_name(file.name)
    folder = os.path.abspath(os.path.expanduser(folder))
    if (yield Work(lambda: _is_done(folder, chosen))):
        return folder
    beside = f"{folder}.partial-{_digest(chosen)}"
    for file in chosen.files:
        source = f"{checkpoints}/{chosen.step}/files/{quote(file.name)}"
        yield from _fetched(source, os.path.join(beside, *file.name.split("/")), file)
    yield Work(lambda: _finish(beside, folder))
    return folder


def _chosen(checkpoints: str, step: int | None) -> Flow[rest.Checkpoint]:
    found: dict[int, rest.Checkpoint] = {}

    def enough(checkpoint: rest.Checkpoint) -> bool:
        found[checkpoint.step] = checkpoint
        return checkpoint.step == step

    yield from visit(pages(rest.Checkpoint, checkpoints), enough)
    if not found:
        raise NotFoundError(
            "the job has no checkpoint yet", hint="wait for the first; training.checkpoint_every"
        )
    if step is None:
        return found[max(found)]
    if step not in found:
        there = ", ".join(str(number) for number in sorted(found))
        raise NotFoundError(
            f"the job has no checkpoint of step {step}", hint=f"it has those of steps {there}"
        )
    return found[step]


def _check_name(name: str) -> None:
    """Nothing is written outside of the folder, whatever the service says."""
    parts = name.split("/")
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise InternalError(f"the service has a checkpoint file of the name {name[:80]!r}")


def _fetched(source: str, target: str, file: rest.StoredFile) -> Flow[None]:
    """Make ``target`` that file, from what there is of it."""
    for _ in range(2):
        yield from _completed(source, target, file.bytes)
        with _writing(target):
            found: str = yield Work(lambda: sha256_of(target))
            if found == file.sha256:
                return
            yield Work(lambda: os.unlink(target))
    raise TransientError(
        f"{file.name} arrived with a wrong checksum, twice", hint="something on the way changes it"
    )


def _completed(source: str, target: str, size: int) -> Flow[None]:
    """Fetch what ``target`` lacks of ``size`` bytes."""
    attempt = 0
    have: int = yield Work(lambda: _begin(target, size))
    while have < size:
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        head = yield from asked(Request(method="GET", path=source, headers=headers), at_once)
        if head.status != 206:
            have = yield Work(lambda: _begin(target, 0))
        error: RlhflessError = TransientError(f"{source} ends before its {size} bytes")
        buffer = bytearray()
        try:
            while have + len(buffer) < size and (chunk := (yield More())) is not None:
                buffer += chunk
                if len(buffer) >= BUFFER_BYTES:
                    have += yield Work(partial(_append, target, bytes(buffer)))
                    buffer.clear()
                    attempt = 0
        except TransientError as cut:
            error = cut
        have += yield Work(partial(_append, target, bytes(buffer)))
        if have < size:
            attempt += 1
            yield Again(attempt, error)


def _digest(checkpoint: rest.Checkpoint) -> str:
    parts = "\n".join(f"{file.sha256} {file.name}" for file in checkpoint.files)
    return hashlib.sha256(parts.encode()).hexdigest()[:12]


def _is_done(folder: str, checkpoint: rest.Checkpoint) -> bool:
    """Whether the folder holds the checkpoint already. Raises ``ConflictError`` if it holds
    something else."""
    with _writing(folder):
        if not os.path.lexists(folder) or (os.path.isdir(folder) and not os.listdir(folder)):
            return False
        names = [os.path.join(folder, *file.name.split("/")) for file in checkpoint.files]
        same = all(
            os.path.isfile(name) and sha256_of(name) == file.sha256
            for name, file in zip(names, checkpoint.files, strict=True)
        )
    if not same:
        raise ConflictError(f"{folder} holds something else", hint="name another folder")
    return True


def _begin(target: str, most: int) -> int:
    """How much of a file is there; none, if that is more than ``most``."""
    with _writing(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "ab") as file:
            if file.tell() > most:
                file.truncate(0)
                return 0
            return file.tell()


def _append(target: str, data: bytes) -> int:
    with _writing(target), open(target, "ab") as file:
        return file.write(data)


def _finish(beside: str, folder: str) -> None:
    with _writing(folder):
        os.makedirs(beside, exist_ok=True)  # of a checkpoint without a file
        os.rename(beside, folder)


@contextmanager
def _writing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as raised:
        error = of_os_error(f"cannot write {what}", raised)
        error.hint = "make room there or name another folder, then download again: it goes on"
        raise error from raised
