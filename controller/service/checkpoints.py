"""Checkpoints of the service's jobs (``rlhfless.checkpoints``): which there are, their files."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator

from controller.service.reads import GoneError, Reads
from rlhfless.checkpoints import (
    MANIFEST,
    Checkpoint,
    CheckpointFile,
    checkpoint_prefix,
    checkpoints_prefix,
    read_checkpoint,
)
from rlhfless.errors import NotFoundError
from rlhfless.objects import ObjectStore

READ_BYTES = 1 << 20
"""Of a file, at once."""
KEEP_MANIFESTS = 1000
_STEP = re.compile(rf"/([0-9]{{6,}})/{MANIFEST}$")


class Checkpoints:
    """Of all jobs. Raises ``NotFoundError``, ``GoneError`` where the store has lost something that
    was made, ``TransientError``."""

    def __init__(self, objects: ObjectStore, reads: Reads) -> None:
        self._objects = objects
        self._reads = reads
        self._manifests: OrderedDict[tuple[str, int], Checkpoint] = OrderedDict()
        self._lock = threading.Lock()

    async def steps(self, job: str) -> list[int]:
        """Of which steps there are any, newest first."""
        return await self._reads.read(self._steps, job)

    async def get(self, job: str, step: int) -> Checkpoint:
        return await self._reads.read(self._get, job, step)

    async def latest(self, job: str) -> Checkpoint:
        """The newest."""
        steps = await self.steps(job)
        if not steps:
            raise NotFoundError(
                f"job {job} has no checkpoint yet", hint="wait for the first of its steps"
            )
        return await self.get(job, steps[0])

    async def file(self, job: str, step: int, name: str) -> CheckpointFile:
        """What the manifest says of a file; only what it names can be had."""
        for file in (await self.get(job, step)).files:
            if file.name == name:
                return file
        raise NotFoundError(f"the checkpoint of step {step} has no file {name[:80]!r}")

    async def content(
        self, job: str, step: int, file: CheckpointFile, start: int, end: int
    ) -> AsyncGenerator[bytes]:
        """Bytes ``[start, end)`` of a file. Raises ``GoneError`` with the first of them if the file
        is not there any more, or not all of it."""
        name = f"{checkpoint_prefix(job, step)}/{file.name}"
        while start < end:
            until = min(end, start + READ_BYTES)
            try:
                data = await self._reads.read(self._objects.get_range, name, start, until)
            except FileNotFoundError:
                data = b""
            if len(data) != until - start:
                raise GoneError(f"{file.name} of the checkpoint of step {step} is damaged")
            yield data
            start = until

    def _steps(self, job: str) -> list[int]:
        names = self._objects.list(checkpoints_prefix(job))
        found = (_STEP.search(name) for name in names)
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def _get(self, job: str, step: int) -> Checkpoint:
        key = (job, step)
        with self._lock:
            if key in self._manifests:
                self._manifests.move_to_end(key)
                return self._manifests[key]
        try:
            found = read_checkpoint(self._objects, checkpoint_prefix(job, step))
        except ValueError as error:
            raise GoneError(f"the checkpoint of step {step} is damaged") from error
        if found is None:
            raise NotFoundError(
                f"there is no checkpoint of step {step} of the job {job}",
                hint=f"GET /v1/jobs/{job}/checkpoints lists them",
            )
        with self._lock:
            self._manifests[key] = found
            if len(self._manifests) > KEEP_MANIFESTS:
                self._manifests.popitem(last=False)
        return found
