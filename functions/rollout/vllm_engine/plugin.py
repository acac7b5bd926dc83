"""Loaded by vLLM in each of its processes, as a general plugin (``pyproject.toml``)."""

from __future__ import annotations

import ctypes
import logging
import os
import signal

from functions.rollout.vllm_engine.environment import PARENT_VARIABLE

BACKEND = "rlhfless"
_PR_SET_PDEATHSIG = 1


def register() -> None:
    """Name our weights to vLLM; see that its core does not outlive us. May be called again."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "functions.rollout.vllm_engine.weights", "StoredWeights"
        )
    # It warns of every layer that a partial version leaves as it is.
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
    owner = int(os.environ.get(PARENT_VARIABLE, "0"))
    if owner and owner != os.getpid():
        _die_with(owner)


def _die_with(owner: int) -> None:
    """vLLM's workers watch its core; its core watches nobody."""
    if os.getppid() == owner:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        os.kill(owner, 0)
    except ProcessLookupError:  # it was killed while we imported, which takes seconds
        os._exit(1)
