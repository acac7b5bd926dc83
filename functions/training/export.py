"""A version as a folder that ``transformers`` loads: weights, configuration, tokenizer.

Written beside its place and renamed, so a folder of that name is always whole. Or into the object
store, as a checkpoint (``rlhfless.checkpoints``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable

import torch

from functions.modeling import VersionedModel, load_base
from functions.weights.lora import load_adapter
from functions.weights.tensors import pull
from rlhfless.checkpoints import (
    Checkpoint,
    CheckpointFile,
    commit_checkpoint,
    read_checkpoint,
)
from rlhfless.errors import ConflictError, UserError
from rlhfless.messages import ExportDone, ExportRequest, ModelRef
from rlhfless.objects import ObjectStore
from rlhfless.versions import LoraConfig

ADAPTER_FOLDER = "adapter"
_TOKENIZER_PARTS = (
    "tokenizer", "vocab", "merges", "special_tokens_map", "added_tokens", "chat_template", "spiece",
)  # fmt: skip


def export(
    request: ExportRequest,
    store: ObjectStore,
    device: torch.device,
    workdir: str,
    now: Callable[[], float] = time.time,
) -> ExportDone:
    """Write ``request.model`` where the request says: into the store below its prefix, or into its
    folder, which must not exist or be an earlier export. ``workdir`` is the instance's own: what a
    killed one leaves half done there goes with it.

    Raises ``ConflictError`` if the folder holds something else, ``TransientError`` if the version
    cannot be read.
    """
    if request.store_prefix is not None:
        return _to_store(request, request.store_prefix, store, device, workdir, now)
    folder = os.path.abspath(request.folder)
    if os.path.exists(folder) and not _replaceable(folder):
        raise ConflictError(f"{folder} exists and is no exported model", param="folder")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    temporary = f"{folder}.tmp-{uuid.uuid4().hex[:8]}"
    try:
        _write(request, temporary, store, device)
        if os.path.exists(folder):
            shutil.rmtree(folder)
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return ExportDone(folder=request.folder, files=_files(folder))


def _to_store(
    request: ExportRequest,
    prefix: str,
    store: ObjectStore,
    device: torch.device,
    workdir: str,
    now: Callable[[], float],
) -> ExportDone:
    """Two that do so at once write the same files, and the first one's manifest counts."""
    if (made := read_checkpoint(store, prefix)) is None:
        with tempfile.TemporaryDirectory(prefix="export-", dir=workdir) as folder:
            _write(request, folder, store, device)
            files = [_upload(store, prefix, folder, name) for name in _files(folder)]
        made = Checkpoint(
            step=request.call.step,
            version=request.model.version,
            created_at=now(),
            metrics=request.metrics,
            final=request.final,
            files=files,
        )
        commit_checkpoint(store, prefix, made)
    return ExportDone(folder=prefix, files=[file.name for file in made.files])


def _upload(store: ObjectStore, prefix: str, folder: str, name: str) -> CheckpointFile:
    path = os.path.join(folder, name)
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    store.put_file(f"{prefix}/{name}", path, durable=True)
    return CheckpointFile(name=name, size=os.path.getsize(path), sha256=digest)


def _write(request: ExportRequest, folder: str, store: ObjectStore, device: torch.device) -> None:
    ref = request.model
    versioned = VersionedModel(device)
    versioned.ensure(ref, store)
    versioned.model.save_pretrained(folder)
    versioned.close()
    _copy_tokenizer(ref.path, folder)
    if request.chat_template is not None:
        template = os.path.join(folder, "chat_template.jinja")
        with open(template, "w", encoding="utf-8") as file:
            file.write(request.chat_template)
    if ref.version > 0:
        _write_adapter(ref, store, os.path.join(folder, ADAPTER_FOLDER))


def _files(folder: str) -> list[str]:
    """Names of all files below a folder."""
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
    )


def _replaceable(folder: str) -> bool:
    """An earlier export, or nothing at all."""
    return os.path.isdir(folder) and (
        not os.listdir(folder) or os.path.exists(os.path.join(folder, "config.json"))
    )


def _copy_tokenizer(path: str, folder: str) -> None:
    """Files of the base as they are; from the Hub by way of the tokenizer."""
    if not os.path.isdir(path):
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(path).save_pretrained(folder)
        return
    for name in sorted(os.listdir(path)):
        source = os.path.join(path, name)
        if name.startswith(_TOKENIZER_PARTS) and os.path.isfile(source):
            shutil.copyfile(source, os.path.join(folder, name))
    templates = os.path.join(path, "additional_chat_templates")
    if os.path.isdir(templates):
        shutil.copytree(templates, os.path.join(folder, "additional_chat_templates"))


def _write_adapter(ref: ModelRef, store: ObjectStore, folder: str) -> None:
    """The version's adapter in peft's own format, where it is a LoRA version."""
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    manifest, tensors = pull(store, ref.job, ref.version)
    lora: LoraConfig | None = manifest.lora
    if lora is None:
        return
    base = load_base(ModelRef(path=ref.path, job=ref.job, version=0, dtype=ref.dtype))
    config = PeftConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=lora.targets, task_type="CAUSAL_LM"
    )
    try:
        model = get_peft_model(base, config)
    except ValueError as error:
        raise UserError(f"the adapter does not fit {ref.path}: {error}") from error
    load_adapter(model, tensors)
    model.save_pretrained(folder)
