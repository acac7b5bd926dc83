"""LoRA versions as folders that vLLM loads adapters from: peft's format."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile

from safetensors.torch import save_file

from functions.rollout.vllm_engine.asking import Adapter
from functions.weights.tensors import pull
from rlhfless.errors import InternalError, UserError
from rlhfless.objects import ObjectStore
from rlhfless.versions import Manifest

_PREFIX = "base_model.model."
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def room_for(rank: int) -> int:
    """The rank that vLLM is to make room for: it knows some only. Raises ``UserError`` if it
    knows none that large."""
    for room in _RANKS:
        if rank <= room:
            return room
    raise UserError(
        f"vLLM serves adapters up to rank {_RANKS[-1]}, not of rank {rank}",
        param="training.lora.rank",
    )


class Adapters:
    """Folders below ``workdir`` (None: where temporary files go). vLLM reads one whenever it has
    lost what it had loaded, so it has to stay for as long as the adapter is in use."""

    def __init__(self, workdir: str | None) -> None:
        self._workdir = workdir
        self._ids = itertools.count(1)

    def fetch(self, store: ObjectStore, job: str, version: int) -> Adapter:
        """The version, under a name and a number of its own, so that neither the adapter nor keys
        and values are ever taken for those of another. Raises as ``pull`` does."""
        manifest, tensors = pull(store, job, version)
        folder = os.path.abspath(tempfile.mkdtemp(prefix=f"adapter-v{version}-", dir=self._workdir))
        try:
            save_file(
                {_PREFIX + name: tensor.contiguous() for name, tensor in tensors.items()},
                os.path.join(folder, "adapter_model.safetensors"),
            )
            with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
                json.dump(_config(manifest), file)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return Adapter(f"{job}:{version}", next(self._ids), folder)

    def forget(self, adapter: Adapter) -> None:
        shutil.rmtree(adapter.folder, ignore_errors=True)


def _config(manifest: Manifest) -> dict[str, object]:
    lora = manifest.lora
    if lora is None:
        raise InternalError(f"version {manifest.version} of job {manifest.job} is no LoRA version")
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": lora.targets,
        "bias": "none",
    }
