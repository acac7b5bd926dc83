"""Weight versions in the object store, as far as that needs no tensors.

    weights/{job}/v000003/manifest.json             written last, by compare-and-swap
    weights/{job}/v000003/{attempt}-00000.safetensors   what the manifest names, nothing else counts

Version 0 is the model the job started from and has no manifest. Version n+1 exists from the moment
its manifest does: exactly one writer can create it, and data files carry the attempt in their name,
so a losing or crashed writer never disturbs a winning one. A version holds the tensors that were
trained; everything else comes from version 0, so each version is readable without its parents.

Torch-free: the controller reads and collects versions too. Tensors: ``functions.weights``.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from rlhfless.errors import ConflictError, TransientError
from rlhfless.messages import Struct
from rlhfless.objects import ObjectStore

Kind: TypeAlias = Literal["full", "partial", "lora"]
_FOLDER = re.compile(r"/v(\d{6,})/([^/]+)$")
_MANIFEST = "manifest.json"


class TensorEntry(Struct, frozen=True, kw_only=True):
    """Where a tensor lies: bytes ``[start, end)`` of ``file``, row-major, little-endian.

    ``dtype`` is safetensors' name (``F32``, ``BF16``, ...).
    """

    file: str
    dtype: str
    shape: list[int]
    start: int
    end: int


class FileEntry(Struct, frozen=True, kw_only=True):
    size: int
    sha256: str


class LoraConfig(Struct, frozen=True, kw_only=True):
    """An adapter's shape; its tensors add ``alpha / rank * B @ A`` to the targets' weights."""

    rank: int
    alpha: float
    targets: list[str]


class Manifest(Struct, frozen=True, kw_only=True):
    """What a version is made of and how it came to be.

    ``tensors`` by parameter name of the plain model (``kind`` ``lora``: ``{module}.lora_A.weight``
    and ``{module}.lora_B.weight``). ``files`` holds every data file, names relative to the
    version's folder. ``attachments`` (label -> file) are what a trainer saved with the version,
    such as optimizer state; a version that has any is a checkpoint. ``train_request`` is the
    ``TrainRequest`` as builtins: with it and the stored batch the step can be replayed.
    """

    job: str
    version: int
    parent: int
    call_id: str
    kind: Kind
    tensors: dict[str, TensorEntry]
    files: dict[str, FileEntry]
    lora: LoraConfig | None = None
    attachments: dict[str, str] = {}
    metrics: dict[str, float] = {}
    train_request: dict[str, Any] | None = None
    data_position: dict[str, int] = {}


_decoder = msgspec.json.Decoder(Manifest)


def version_folder(job: str, version: int) -> str:
    return f"weights/{job}/v{version:06d}"


def manifest_name(job: str, version: int) -> str:
    return f"{version_folder(job, version)}/{_MANIFEST}"


def read_manifest(store: ObjectStore, job: str, version: int) -> Manifest | None:
    """The manifest of a version, None if there is no such version (or no longer)."""
    try:
        data = store.get(manifest_name(job, version))
    except FileNotFoundError:
        return None
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise TransientError(
            f"the manifest of version {version} of job {job} is unreadable: {error}"
        ) from error


def versions(store: ObjectStore, job: str) -> list[int]:
    """Versions that have a manifest, ascending; version 0 is not among them."""
    return sorted(v for v, file in _objects(store, job) if file == _MANIFEST)


def latest_version(store: ObjectStore, job: str) -> int:
    """The newest committed version; 0 where nothing was trained yet."""
    return max(versions(store, job), default=0)


def last_checkpoint(store: ObjectStore, job: str) -> Manifest | None:
    """The newest version saved with its training state; None: training starts from version 0."""
    for version in reversed(versions(store, job)):
        manifest = read_manifest(store, job, version)
        if manifest is not None and manifest.attachments:
            return manifest
    return None


def committed(store: ObjectStore, job: str, version: int, call_id: str) -> Manifest | None:
    """The version if call ``call_id`` has made it, None if it is still to be made.

    Raises ``ConflictError`` if another call made it, or if the job has moved past it and the
    version is already collected: a call delayed for so long must not make it again.
    """
    manifest = read_manifest(store, job, version)
    if manifest is not None:
        if manifest.call_id != call_id:
            raise ConflictError(
                f"version {version} of job {job} was made by call {manifest.call_id}; "
                f"call {call_id} cannot make it again"
            )
        return manifest
    latest = latest_version(store, job)
    if latest > version:
        raise ConflictError(
            f"job {job} is already at version {latest}; call {call_id} came too late "
            f"to make version {version}"
        )
    return None


def commit(store: ObjectStore, manifest: Manifest) -> tuple[Manifest, bool]:
    """Make the version real, its data files being in place: the compare-and-swap of training.

    Returns the manifest that stands and whether this very attempt put it there. Raises as
    ``committed`` does.
    """
    job, version, call_id = manifest.job, manifest.version, manifest.call_id
    earlier = committed(store, job, version, call_id)
    if earlier is not None:
        return earlier, False
    try:
        created = store.create(manifest_name(job, version), msgspec.json.encode(manifest))
    except FileNotFoundError:  # a collector took what we were writing: somebody else has won
        created = False
    if created:
        return manifest, True
    winner = committed(store, job, version, call_id)
    if winner is None:
        raise TransientError(f"version {version} of job {job} was collected while being made")
    return winner, False


# --- collection -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Deletion:
    """``versions`` go altogether; of ``data`` only the tensors: the manifests stay for replay."""

    versions: tuple[int, ...]
    data: tuple[int, ...]


def versions_to_delete(
    versions: Collection[int], checkpoints: Collection[int], keep_last: int
) -> Deletion:
    """Which versions are no longer needed.

    The newest ``keep_last`` and all ``checkpoints`` stay. Versions after the last checkpoint keep
    their manifests: they say how to replay training from there.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last must be at least 1, got {keep_last}")
    kept = {*sorted(versions)[-keep_last:], *checkpoints}
    replay_from = max(checkpoints, default=0)
    gone = sorted(set(versions) - kept)
    return Deletion(
        versions=tuple(v for v in gone if v < replay_from),
        data=tuple(v for v in gone if v > replay_from),
    )


def collect(store: ObjectStore, job: str, keep_last: int) -> Deletion:
    """Delete what ``versions_to_delete`` finds, and what lost or crashed writers left behind.

    Manifests go before data, so a version is never seen with a part of its tensors missing but
    by readers that had begun, and those get a ``TransientError``. Attachments of checkpoints but
    the last go too: recovery starts from the last. Files beside no newer manifest are left alone:
    they may belong to a writer that is still at work. Safe to run from several places at once.
    """
    objects = _objects(store, job, unfinished=True)
    manifests = {
        v: m
        for v, file in objects
        if file == _MANIFEST and (m := read_manifest(store, job, v)) is not None
    }
    checkpoints = {v for v, m in manifests.items() if m.attachments}
    deletion = versions_to_delete(manifests, checkpoints, keep_last)
    for version in deletion.versions:
        store.delete(manifest_name(job, version))
    wanted = {
        (v, file)
        for v, m in manifests.items()
        if v not in deletion.versions
        for file in _files_to_keep(
            m, tensors=v not in deletion.data, attachments=v == max(checkpoints, default=0)
        )
    }
    latest = max(manifests, default=0)
    # A manifest that the listing missed may have come while it ran; below the latest none can now.
    unseen = {v for v, _ in objects} - manifests.keys()
    kept = {v for v in unseen if v <= latest and read_manifest(store, job, v) is not None}
    for version, file in objects:
        if version > latest or version in kept or file == _MANIFEST:
            continue
        if (version, file) not in wanted:
            store.delete(f"{version_folder(job, version)}/{file}")
    return deletion


def _files_to_keep(manifest: Manifest, *, tensors: bool, attachments: bool) -> set[str]:
    attached = set(manifest.attachments.values())
    kept = set(manifest.files) - attached if tensors else set()
    return kept | attached if attachments else kept


def _objects(store: ObjectStore, job: str, *, unfinished: bool = False) -> list[tuple[int, str]]:
    """Every object of a job's versions as (version, file name)."""
    names = store.list(f"weights/{job}", unfinished=unfinished)
    found = (_FOLDER.search(name) for name in names)
    return [(int(match[1]), match[2]) for match in found if match is not None]
