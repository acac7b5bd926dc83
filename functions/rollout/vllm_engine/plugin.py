"""Loaded by vLLM in each of its processes, as a general plugin (``pyproject.toml``), and what makes
them end with ours: vLLM's workers watch its core; its core watches nobody."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import threading
from collections.abc import Iterator

from functions.rollout.vllm_engine.environment import PARENT_VARIABLE

BACKEND = "rlhfless"
_PR_SET_PDEATHSIG = 1
_starting: set[int] = set()
"""Threads whose children are vLLM's."""


def register() -> None:
    """Name our weights to vLLM; see that its core does not outlive us. May be called again."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "functions.rollout.vllm_engine.weights", "StoredWeights"
        )
    # It warns of every layer that a partial version leaves as it is.
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
    _die_with_owner()


@contextlib.contextmanager
def vllm_starts() -> Iterator[None]:
    """Around what starts vLLM's processes, in the thread that does. A core that is forked, not
    spawned, has all plugins loaded already, so it does not come to ``register``."""
    _starting.add(threading.get_ident())
    try:
        yield
    finally:
        _starting.discard(threading.get_ident())


def _forked() -> None:
    if threading.get_ident() in _starting:
        _die_with_owner()


os.register_at_fork(after_in_child=_forked)


def _die_with_owner() -> None:
    """In a child of the process that vLLM's belong to: be killed when the thread that started us
    ends, which in ``runtime`` is when the engine has been ended, or its process."""
    owner = int(os.environ.get(PARENT_VARIABLE, "0"))
    if not owner or owner == os.getpid():
        return
    if os.getppid() == owner:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        os.kill(owner, 0)
    except ProcessLookupError:  # it was killed while we started, which takes seconds
        os._exit(1)
