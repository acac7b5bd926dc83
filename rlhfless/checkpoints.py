"""Exported models in the object store: folders that ``transformers`` loads.

    checkpoints/{job}/000010/config.json, model.safetensors, ...    what the manifest names
    checkpoints/{job}/000010/manifest.json                          written last, once

A checkpoint exists from the moment its manifest does. The training function writes them, the
service lists them and hands out their files.
"""

from __future__ import annotations

import msgspec

from rlhfless.messages import Struct
from rlhfless.objects import ObjectStore

MANIFEST = "manifest.json"


class CheckpointFile(Struct, frozen=True, kw_only=True):
    """``name`` is relative to the checkpoint; ``size`` in bytes."""

    name: str
    size: int
    sha256: str


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The manifest. ``step``: steps done; ``created_at`` in Unix seconds; ``metrics`` are that
    step's; ``final``: the model the job ended with."""

    step: int
    version: int
    created_at: float
    files: list[CheckpointFile]
    metrics: dict[str, float] = {}
    final: bool = False


_decode = msgspec.json.Decoder(Checkpoint).decode


def checkpoints_prefix(job: str) -> str:
    return f"checkpoints/{job}"


def checkpoint_prefix(job: str, step: int) -> str:
    """Where the model after ``step`` steps lies."""
    return f"{checkpoints_prefix(job)}/{step:06d}"


def read_checkpoint(store: ObjectStore, prefix: str) -> Checkpoint | None:
    """None if there is none. Raises ``ValueError`` if its manifest is damaged. Blocks."""
    try:
        return _decode(store.get(f"{prefix}/{MANIFEST}"))
    except FileNotFoundError:
        return None


def commit_checkpoint(store: ObjectStore, prefix: str, checkpoint: Checkpoint) -> bool:
    """Make it exist, its files being there; False if it did already. Blocks."""
    return store.create(f"{prefix}/{MANIFEST}", msgspec.json.encode(checkpoint))
