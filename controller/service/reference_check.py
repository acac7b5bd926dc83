"""Whether what a job names is there, asked when it is submitted: a person then still watches.

It can be gone when the job runs; ``controller.service.inputs`` answers that with the same errors.
What is on the Hub is asked for by the download alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from controller.integrations.rules import check_strangers
from controller.service.files import FileRecord, Files
from controller.service.library import Library
from controller.service.references import (
    CheckpointReference,
    FileReference,
    LibraryReference,
    Named,
    UrlReference,
    references,
)
from controller.service.registry import Registry
from controller.service.urls import check_url
from rlhfless.checkpoints import Checkpoint, checkpoint_prefix, read_checkpoint
from rlhfless.errors import NotFoundError, UserError
from rlhfless.objects import ObjectStore
from rlhfless.rest import Purpose
from rlhfless.spec import JobSpec

PURPOSES: dict[str, Purpose] = {
    "model": "model",
    "reward_model": "model",
    "dataset": "dataset",
    "reward": "reward",
}
"""Of the files that fields of each kind take."""
DATA_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")


class References:
    """Of any tenant's jobs; another tenant's things are answered as if they were not there."""

    def __init__(
        self,
        files: Files,
        library: Library,
        registry: Registry,
        objects: ObjectStore,
        allowed_urls: Sequence[str] = (),
    ) -> None:
        self._files = files
        self._library = library
        self._registry = registry
        self._objects = objects
        self._allowed_urls = allowed_urls

    async def check(self, spec: JobSpec, tenant: str) -> None:
        """Raises ``UserError`` naming the field that names nothing the tenant's job can use;
        ``TransientError`` where that cannot be found out now."""
        check_strangers(spec, self._allowed_urls)
        for named in references(spec):
            await self._check(named, tenant)

    async def _check(self, named: Named, tenant: str) -> None:
        match named.reference:
            case FileReference(id_):
                check_file(named, await self._files.get(tenant, id_, named.param))
            case LibraryReference(name):
                if named.kind == "reward" and not name.endswith(".py"):
                    raise UserError(f"{name[:80]!r} is no .py file", param=named.param)
                await asyncio.to_thread(self._library.path, name, named.param)
            case CheckpointReference() as reference:
                await self.checkpoint(reference, tenant, named.param)
            case UrlReference(url):
                # Those of datasets are opened by ``fetch``, which takes none with a password.
                own = named.kind == "url"
                await check_url(url, named.param, self._allowed_urls, credentials=own)
            case _:
                pass

    async def checkpoint(
        self, reference: CheckpointReference, tenant: str, param: str
    ) -> Checkpoint:
        """What is told of a checkpoint's files. Raises ``NotFoundError`` naming ``param``."""
        prefix = checkpoint_prefix(reference.job, reference.step)
        found = None
        with contextlib.suppress(NotFoundError):
            await self._registry.get(tenant, reference.job)
            found = await asyncio.to_thread(read_checkpoint, self._objects, prefix)
        if found is None:
            raise NotFoundError(
                f"there is no checkpoint of step {reference.step} of the job {reference.job}",
                param=param,
                hint=f"GET /v1/jobs/{reference.job}/checkpoints lists those of a job",
            )
        return found


def check_file(named: Named, file: FileRecord) -> None:
    """Whether a file can be what a field needs, by its purpose and name. Raises ``UserError``."""

    def bad(why: str, hint: str) -> UserError:
        return UserError(
            f"the file {file.id} ({file.filename}) {why}", param=named.param, hint=hint
        )

    wanted = PURPOSES[named.kind]
    name = file.filename.lower()
    if file.purpose != wanted:
        raise bad(f"was uploaded as a {file.purpose}", f"upload it with purpose={wanted}")
    if named.kind == "reward":
        inside = isinstance(named.reference, FileReference) and bool(named.reference.member)
        if inside and not name.endswith(TAR_SUFFIXES):
            raise bad("is no tar with files in it", f"write {file.id}:{named.function}")
        if not inside and not name.endswith(".py"):
            raise bad("is no .py file", f"of a tar, write {file.id}/rewards.py:{named.function}")
    elif named.kind == "dataset":
        if not name.endswith((*DATA_SUFFIXES, *TAR_SUFFIXES)) and named.format == "auto":
            hint = "name it .jsonl, .parquet or .tar (of a folder of datasets), or set the format"
            raise bad("does not tell its format", hint)
    elif not name.endswith(TAR_SUFFIXES):
        raise bad("is no tar", "upload a tar of the model's folder")
