"""From the names in a job's spec to paths on this machine, held for as long as the job runs.

Contents lie below ``<settings.folder>/inputs`` under what they are (a hash, a checkpoint, a name on
the Hub), so that jobs and replicas share them; the operator's library is read where it lies. What a
URL held when the job first ran becomes a file of the tenant's, so that a job that goes on elsewhere
goes on with the same rows.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from controller.service import hub
from controller.service.draft import Draft
from controller.service.fetch import fetch
from controller.service.files import FileRecord, Files, name_in
from controller.service.input_cache import InputCache, to_end
from controller.service.library import PREFIX, Library
from controller.service.model_folder import find_root, model_root
from controller.service.reference_check import (
    DATA_SUFFIXES,
    TAR_SUFFIXES,
    References,
    check_file,
)
from controller.service.references import (
    CheckpointReference,
    FileReference,
    HubReference,
    LibraryReference,
    Named,
    UrlReference,
    check_name,
    references,
)
from controller.service.settings import Settings
from controller.service.unpack import unpack
from rlhfless.checkpoints import CheckpointFile, checkpoint_prefix
from rlhfless.errors import NotFoundError, TransientError, UserError, of_os_error
from rlhfless.objects import ObjectStore
from rlhfless.spec import JobSpec, reward_name
from rlhfless.spec_file import parse_spec, set_field

COPIED_BYTES = 4 << 20
"""Of an object, at once."""
_MODULE = re.compile(r"[a-z_][a-z0-9_]{0,63}", re.IGNORECASE)
_DATASET = ("dataset_dict.json", "dataset_info.json", "state.json")
"""What ``save_to_disk`` writes into its folder."""


class Inputs:
    """For jobs that this replica runs, estimates or tries."""

    def __init__(
        self,
        settings: Settings,
        files: Files,
        library: Library,
        checked: References,
        objects: ObjectStore,
    ) -> None:
        self._settings = settings
        self._files = files
        self._library = library
        self._references = checked
        self._objects = objects
        folder = settings.file("inputs")
        self._cache = InputCache(folder, settings.max_input_bytes)
        own = re.escape(folder) + r"/[^/\s]+/(content/)?"
        self._shown = [
            (re.compile(own), ""),
            # Of others' code in a trace the module says enough.
            (re.compile(r'(?<=File ")/[^"\n]*/(?=[^/"\n]+")'), ".../"),
        ]
        if settings.library is not None:
            library_folder = re.escape(os.path.realpath(settings.library)) + "/"
            self._shown.insert(0, (re.compile(library_folder), PREFIX))

    @asynccontextmanager
    async def materialised(
        self, spec: JobSpec, tenant: str, job: str | None = None, *, download: bool = True
    ) -> AsyncIterator[JobSpec]:
        """The spec with a local path wherever it names something; the paths stay good while it is
        held. ``job``: whose inputs these are, None for nobody's yet. Without ``download`` what is
        on the Hub keeps its name, unless it is here already.

        Raises ``UserError`` naming the field whose input is gone, or is not what it should be;
        ``TransientError`` and ``CapacityError`` where another attempt may succeed.
        """
        raw = spec.model_dump()
        async with AsyncExitStack() as held:
            for named in references(spec):
                if named.kind == "url":
                    continue
                path = await self._path(held, named, tenant, job, download)
                value = f"{path}:{named.function}" if named.function else path
                set_field(raw, named.param, value, named.param)
            for number, reward in enumerate(spec.rewards):
                # A name of the user's choosing, and never one of our folders.
                raw["rewards"][number]["name"] = reward_name(reward)
            yield parse_spec(raw)

    async def _path(
        self, held: AsyncExitStack, named: Named, tenant: str, job: str | None, download: bool
    ) -> str:
        match named.reference:
            case FileReference(id_, member):
                file = await self._files.get(tenant, id_, named.param)
                return await self._file(held, named, file, member)
            case UrlReference(url):
                return await self._file(held, named, await self._fetched(named, url, tenant, job))
            case LibraryReference(name):
                return await asyncio.to_thread(self._library.path, name, named.param)
            case CheckpointReference() as checkpoint:
                return await self._checkpoint(held, named, checkpoint, tenant)
            case HubReference(name):
                return await self._hub(held, named, name, download)

    def shown(self, text: str) -> str:
        """A text of somebody who worked with the paths (an error, a trace), without where the
        service keeps things."""
        for folder, instead in self._shown:
            text = folder.sub(instead, text)
        return text

    async def _file(
        self, held: AsyncExitStack, named: Named, file: FileRecord, member: str = ""
    ) -> str:
        check_file(named, file)
        if file.filename.lower().endswith(TAR_SUFFIXES):
            entry = await self._unpacked(held, named, file)
            return await asyncio.to_thread(_inside, entry, named, member)
        name = _plain_name(named, file)

        async def make(folder: str) -> None:
            await self._copy(file.object_name, os.path.join(folder, name), file, named.param)

        entry = await held.enter_async_context(self._cache.held(f"{file.sha256}-{name}", make))
        return os.path.join(entry, name)

    async def _unpacked(self, held: AsyncExitStack, named: Named, file: FileRecord) -> str:
        async def make(folder: str) -> None:
            tar = os.path.join(folder, ".tar")
            await self._copy(file.object_name, tar, file, named.param)
            await to_end(
                lambda stop: unpack(
                    tar,
                    os.path.join(folder, "content"),
                    param=named.param,
                    max_bytes=self._settings.max_unpacked_bytes,
                    stopped=stop.is_set,
                )
            )
            os.unlink(tar)

        entry = await held.enter_async_context(self._cache.held(f"{file.sha256}-tar", make))
        return os.path.join(entry, "content")

    async def _fetched(self, named: Named, url: str, tenant: str, job: str | None) -> FileRecord:
        """What a URL held when it was first asked for the job."""
        settings, param = self._settings, named.param
        id_ = None if job is None else await self._files.pinned(job, param)
        if id_ is None:
            with Draft(settings.file("uploads"), settings.max_file_bytes) as draft:
                await fetch(
                    url,
                    draft.write,
                    param=param,
                    max_bytes=draft.max_bytes,
                    allowed=settings.allowed_urls,
                )
                file = await self._files.add(tenant, draft, "dataset", name_in(url))
            if job is None:
                return file
            id_ = await self._files.pin(job, param, file.id)
        return await self._files.get(tenant, id_, param)

    async def _checkpoint(
        self, held: AsyncExitStack, named: Named, checkpoint: CheckpointReference, tenant: str
    ) -> str:
        found = await self._references.checkpoint(checkpoint, tenant, named.param)
        prefix = checkpoint_prefix(checkpoint.job, checkpoint.step)

        async def make(folder: str) -> None:
            for file in found.files:
                target = os.path.join(folder, check_name(file.name, named.param))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                await self._copy(f"{prefix}/{file.name}", target, file, named.param)

        digest = hashlib.sha256(prefix.encode() + msgspec.json.encode(found)).hexdigest()
        entry = await held.enter_async_context(self._cache.held(f"{digest}-checkpoint", make))
        return await asyncio.to_thread(model_root, entry, named.param)

    async def _hub(self, held: AsyncExitStack, named: Named, name: str, download: bool) -> str:
        what: hub.What = "dataset" if named.kind == "dataset" else "model"
        if what == "model" and (found := await asyncio.to_thread(hub.cached_model, name)):
            return await asyncio.to_thread(model_root, found, named.param)
        if not download:
            return name

        async def make(folder: str) -> None:
            limit = self._settings.max_hub_bytes
            await hub.download(what, name, folder, limit, named.param)

        digest = hashlib.sha256(name.encode()).hexdigest()
        entry = await held.enter_async_context(self._cache.held(f"{digest}-hub-{what}", make))
        if what == "dataset":
            return os.path.join(entry, "data")
        return await asyncio.to_thread(model_root, entry, named.param)

    async def _copy(
        self, name: str, path: str, of: FileRecord | CheckpointFile, param: str
    ) -> None:
        """An object's content, which must be what was recorded of it."""
        size = of.num_bytes if isinstance(of, FileRecord) else of.size
        digest = hashlib.sha256()

        def copy(stop: threading.Event) -> None:
            with open(path, "xb") as file:
                for start in range(0, size, COPIED_BYTES):
                    if stop.is_set():
                        return
                    piece = self._objects.get_range(name, start, min(start + COPIED_BYTES, size))
                    digest.update(piece)
                    file.write(piece)

        try:
            await to_end(copy)
        except FileNotFoundError as error:
            raise NotFoundError(f"{name} is no longer there", param=param) from error
        except OSError as error:
            raise of_os_error("cannot keep a job's input", error) from error
        if digest.hexdigest() != of.sha256:
            raise TransientError(f"{name} was not read as it was written")


def _plain_name(named: Named, file: FileRecord) -> str:
    """Of a file on disk: what it is called there tells its format, or is a module's name."""
    stem, suffix = os.path.splitext(file.filename)
    if named.kind == "reward":
        return f"{stem if _MODULE.fullmatch(stem) else 'reward'}.py"
    return f"data{suffix.lower() if suffix.lower() in DATA_SUFFIXES else ''}"


def _inside(content: str, named: Named, member: str) -> str:
    """The thing in an unpacked tar that a field means."""
    if named.kind == "dataset":
        root = find_root(content, *_DATASET)
        if root is None:
            hint = "send a tar of a folder that datasets.save_to_disk wrote"
            raise UserError("the tar holds no dataset", param=named.param, hint=hint)
        return root
    if named.kind == "reward":
        root = find_root(content, member)
        if root is None:
            raise UserError(f"the tar holds no {member}", param=named.param)
        return os.path.join(root, member)
    return model_root(content, named.param)
