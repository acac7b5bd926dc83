"""What vLLM reads from the environment of its processes; to be set before it is imported."""

from __future__ import annotations

import os

PARENT_VARIABLE = "RLHFLESS_VLLM_PARENT"
"""The process that vLLM's processes belong to; see ``plugin``."""


def prepare_environment(accelerator: str, threads: int) -> None:
    """What the operator has set stays."""
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_PLUGINS": "rlhfless",
        PARENT_VARIABLE: str(os.getpid()),
    }
    if accelerator == "cpu":
        wanted |= {
            # One process beside ours, not two: the core runs the model itself.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # instances share the machine
            "OMP_NUM_THREADS": str(threads),
            "KMP_BLOCKTIME": "0",
        }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
