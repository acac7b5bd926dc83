"""Publish and pull the tensors of a version (see ``rlhfless.versions`` for the layout).

A writer saves its tensors in safetensors files of bounded size under names of its own attempt,
then commits the manifest. A reader trusts nothing that does not match the manifest's checksums,
and maps the files where the store is a directory, so tensors cost no memory until they are used.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load, save

from rlhfless.errors import InternalError, TransientError
from rlhfless.objects import ObjectStore, sha256
from rlhfless.versions import (
    FileEntry,
    Kind,
    LoraConfig,
    Manifest,
    TensorEntry,
    commit,
    committed,
    read_manifest,
    version_folder,
)

MAX_FILE_BYTES = 512 << 20


def publish(
    store: ObjectStore,
    job: str,
    parent: int,
    tensors: Mapping[str, torch.Tensor],
    *,
    kind: Kind,
    call_id: str,
    lora: LoraConfig | None = None,
    attachments: Mapping[str, bytes] | None = None,
    metrics: Mapping[str, float] | None = None,
    train_request: dict[str, Any] | None = None,
    data_position: Mapping[str, int] | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> tuple[Manifest, bool]:
    """Make version ``parent + 1`` of ``tensors``; returns its manifest and whether we made it.

    A repeat of the same call returns the first result and False. ``tensors`` by parameter name,
    none aliasing another (``named_parameters`` gives tied ones once). Raises ``ConflictError`` if
    another call made the version, ``CapacityError`` when the disk is full.
    """
    version = parent + 1
    if (kind == "lora") != (lora is not None):
        raise InternalError("a lora version, and no other, has a LoRA config")
    if parent > 0 and read_manifest(store, job, parent) is None:
        raise InternalError(f"version {parent} of job {job} does not exist: it has no successor")
    earlier = committed(store, job, version, call_id)
    if earlier is not None:
        return earlier, False

    folder = version_folder(job, version)
    attempt = uuid.uuid4().hex[:16]
    files: dict[str, FileEntry] = {}
    entries: dict[str, TensorEntry] = {}

    def write(name: str, data: bytes) -> None:
        try:
            store.put(f"{folder}/{name}", data, durable=True)
        except FileNotFoundError as error:
            raise TransientError(f"{folder} was collected while {call_id} wrote to it") from error
        files[name] = FileEntry(size=len(data), sha256=sha256(data))

    for index, shard in enumerate(_shards(tensors, max_file_bytes)):
        name = f"{attempt}-{index:05d}.safetensors"
        data = _serialised(shard)
        write(name, data)
        entries.update(_entries(name, data))
    attached = {label: f"{attempt}-{label}" for label in attachments or {}}
    for label, data in (attachments or {}).items():
        write(attached[label], data)

    return commit(
        store,
        Manifest(
            job=job,
            version=version,
            parent=parent,
            call_id=call_id,
            kind=kind,
            tensors=entries,
            files=files,
            lora=lora,
            attachments=attached,
            metrics=dict(metrics or {}),
            train_request=train_request,
            data_position=dict(data_position or {}),
        ),
    )


def pull(store: ObjectStore, job: str, version: int) -> tuple[Manifest, dict[str, torch.Tensor]]:
    """A version's manifest and tensors, verified; on a directory store the tensors are mapped.

    The tensors must not be written to. Raises ``TransientError``, naming what is wrong, if the
    version or one of its files is missing or does not match its checksum.
    """
    manifest = _existing(store, job, version)
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted({entry.file for entry in manifest.tensors.values()}):
        tensors.update(_read_file(store, manifest, file))
    if missing := manifest.tensors.keys() - tensors.keys():
        raise TransientError(f"version {version} of job {job} lacks {min(missing)}")
    return manifest, tensors


def holds(manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether publishing ``tensors`` again would give the very bytes of this version.

    Goes by the checksums alone, so it works for a version whose data is already collected.
    """
    if manifest.tensors.keys() != tensors.keys():
        return False
    files: dict[str, list[str]] = {}
    for name, entry in manifest.tensors.items():
        files.setdefault(entry.file, []).append(name)
    return all(
        sha256(_serialised({name: tensors[name] for name in names})) == manifest.files[file].sha256
        for file, names in files.items()
    )


def read_attachment(store: ObjectStore, job: str, version: int, label: str) -> bytes:
    """What a trainer attached to a version. Raises ``TransientError`` as ``pull`` does."""
    manifest = _existing(store, job, version)
    if label not in manifest.attachments:
        raise TransientError(f"version {version} of job {job} has no {label} attached")
    return _read_bytes(store, manifest, manifest.attachments[label])


def num_bytes(manifest: Manifest) -> int:
    """Bytes that ``pull`` reads."""
    return sum(manifest.files[f].size for f in {e.file for e in manifest.tensors.values()})


def _existing(store: ObjectStore, job: str, version: int) -> Manifest:
    manifest = read_manifest(store, job, version)
    if manifest is None:
        raise TransientError(f"version {version} of job {job} is not in the store {store.url}")
    return manifest


def _read_file(store: ObjectStore, manifest: Manifest, file: str) -> dict[str, torch.Tensor]:
    path = store.local_path(f"{version_folder(manifest.job, manifest.version)}/{file}")
    if path is None:
        loaded: dict[str, torch.Tensor] = load(_read_bytes(store, manifest, file))
        return loaded
    try:
        with open(path, "rb") as opened:
            _check(manifest, file, hashlib.file_digest(opened, "sha256").hexdigest())
        with safe_open(path, framework="pt") as tensors:
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise _missing(manifest, file) from error


def _read_bytes(store: ObjectStore, manifest: Manifest, file: str) -> bytes:
    try:
        data = store.get(f"{version_folder(manifest.job, manifest.version)}/{file}")
    except FileNotFoundError as error:
        raise _missing(manifest, file) from error
    _check(manifest, file, sha256(data))
    return data


def _check(manifest: Manifest, file: str, digest: str) -> None:
    if digest != manifest.files[file].sha256:
        raise TransientError(
            f"{version_folder(manifest.job, manifest.version)}/{file} is corrupt: it does not "
            "match the checksum in its manifest"
        )


def _missing(manifest: Manifest, file: str) -> TransientError:
    folder = version_folder(manifest.job, manifest.version)
    return TransientError(f"{folder}/{file} is missing: version {manifest.version} was collected")


def _serialised(tensors: Mapping[str, torch.Tensor]) -> bytes:
    data: bytes = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    return data


def _shards(
    tensors: Mapping[str, torch.Tensor], max_bytes: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Split by size, in order, so that a writer holds one file's bytes at a time."""
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if shard and size + tensor.nbytes > max_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    if shard:
        yield shard


def _entries(file: str, data: bytes) -> dict[str, TensorEntry]:
    """The byte ranges of a safetensors file: 8 bytes of header length, JSON header, data."""
    offset = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:offset])
    return {
        name: TensorEntry(
            file=file,
            dtype=entry["dtype"],
            shape=entry["shape"],
            start=offset + entry["data_offsets"][0],
            end=offset + entry["data_offsets"][1],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }
