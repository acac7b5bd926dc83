"""Models at a version: load the base once, then move between versions in place.

Used by every function that runs the policy or the reference without training it. The parameters
keep their addresses while versions move, so whoever holds the model (an engine with compiled
graphs or cached views) need not be told.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as hf_logging

from functions.weights.overlay import Overlay
from functions.weights.tensors import num_bytes, pull
from rlhfless.errors import CapacityError, InternalError, UserError
from rlhfless.messages import ModelRef
from rlhfless.objects import ObjectStore

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_loading = threading.Lock()
"""``from_pretrained`` swaps torch's defaults while it loads: two threads would break each other."""


def device_for(accelerator: str) -> torch.device:
    """``cpu`` is the CPU; any other accelerator name is the first CUDA device."""
    if accelerator == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            f"this instance was given the accelerator {accelerator}, but has no CUDA device",
            param="accelerator",
            hint="use accelerator: cpu, or a machine and a torch build with CUDA",
        )
    return torch.device("cuda")


def load_base(ref: ModelRef, device: torch.device | str = "cpu") -> Any:
    """Version 0 of a model, as ``transformers`` loads it, in ``ref.dtype``; in eval mode.

    Raises ``UserError`` if there is no such model, it is no causal language model, its checkpoint
    is incomplete, or the dtype is unknown; ``CapacityError`` if it does not fit into memory.
    """
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    if ref.dtype not in _DTYPES:
        raise UserError(
            f"unknown dtype {ref.dtype}", param="model.dtype", hint=f"one of {', '.join(_DTYPES)}"
        )
    model_config(ref.path)
    try:
        with _loading:
            model, info = AutoModelForCausalLM.from_pretrained(
                ref.path,
                dtype=_DTYPES[ref.dtype],
                attn_implementation="sdpa",
                use_safetensors=True,
                output_loading_info=True,
            )
        model = model.to(device)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(
            f"cannot load the model {ref.path}: {_first_line(error)}", param="model.path"
        ) from error
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise CapacityError(f"the model {ref.path} does not fit into memory on {device}") from error
    absent = [*info["missing_keys"], *(str(key) for key in info["mismatched_keys"])]
    if absent:
        raise UserError(
            f"the checkpoint {ref.path} is not whole: {len(absent)} tensors are missing or of "
            f"another shape, such as {min(absent)}",
            param="model.path",
        )
    return model.eval()


def model_config(path: str) -> Any:
    """The configuration of a causal language model. Raises ``UserError`` if there is none."""
    if not os.path.isdir(path) and (os.path.isabs(path) or path.startswith(".")):
        raise UserError(f"there is no model folder {path}", param="model.path")
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is no model: {_first_line(error)}",
            param="model.path",
            hint="give a folder with config.json and safetensors weights, or a name on the Hub",
        ) from error
    architectures = config.architectures or ["(none named)"]
    causal = any("CausalLM" in name or "LMHead" in name for name in architectures)
    if not causal or getattr(config, "is_encoder_decoder", False):
        raise UserError(
            f"{path} is no causal language model, but {', '.join(architectures)}",
            param="model.path",
        )
    return config


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@dataclass(frozen=True)
class PullStats:
    """What bringing a model to a version took: ``seconds`` for ``bytes`` read from the store, and
    before that ``load_s`` for the base model, where it was not there."""

    seconds: float = 0.0
    bytes: int = 0
    load_s: float = 0.0


class VersionedModel:
    """A model that serves any version of a job: ``ensure`` a version, then use ``model``.

    Keeps one copy of the base weights of those tensors that versions override, and no other. Not
    safe for threads that need different versions at once.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._overlay: Overlay | None = None
        self._base = ("", "")
        self._job = ""
        self._version = 0

    @property
    def model(self) -> Any:
        """The ``transformers`` model: eval mode, no gradients, parameters updated in place."""
        if self._overlay is None:
            raise InternalError("no version has been loaded yet")
        return self._overlay.model

    @property
    def version(self) -> int:
        return self._version

    def ensure(self, ref: ModelRef, store: ObjectStore) -> PullStats:
        """Bring the model to ``ref``; returns at once if it is there already.

        If the version cannot be had or does not fit, the model keeps the one it had. Raises as
        ``load_base`` and ``pull`` do.
        """
        started = time.perf_counter()
        load_s = 0.0
        if self._overlay is None or self._base != (ref.path, ref.dtype):
            self.close()
            model = load_base(ref, self.device).requires_grad_(False)
            self._overlay, self._base = Overlay(model), (ref.path, ref.dtype)
            load_s = time.perf_counter() - started
        elif self._version == ref.version and (ref.version == 0 or self._job == ref.job):
            return PullStats()
        size = 0
        if ref.version == 0:
            self._overlay.clear()
        else:
            manifest, tensors = pull(store, ref.job, ref.version)
            self._overlay.apply(manifest, tensors)
            size = num_bytes(manifest)
        self._job, self._version = ref.job, ref.version
        return PullStats(time.perf_counter() - started - load_s, size, load_s)

    def close(self) -> None:
        """Free the model."""
        self._overlay, self._base, self._job, self._version = None, ("", ""), "", 0
