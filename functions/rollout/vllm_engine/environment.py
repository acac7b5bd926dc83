"""What vLLM reads from the environment of its processes; to be set before it is imported."""

from __future__ import annotations

import os
import tempfile

PARENT_VARIABLE = "RLHFLESS_VLLM_PARENT"
"""The process that vLLM's processes belong to; see ``plugin``."""

_LONGEST_FOLDER = 107 - len("/01234567-89ab-cdef-0123-456789abcdef")
"""Of a Unix socket that vLLM makes: its path has at most 107 bytes."""


def prepare_environment(accelerator: str, threads: int, workdir: str = ".") -> None:
    """What the operator has set stays. ``workdir``: vLLM leaves sockets and files behind, and
    there they go with the instance; ``.``: it has no place of its own."""
    os.environ[PARENT_VARIABLE] = str(os.getpid())  # not that of who started us
    if workdir != "." and len(os.fsencode(folder := os.path.abspath(workdir))) <= _LONGEST_FOLDER:
        os.environ["TMPDIR"] = folder
        tempfile.tempdir = None
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_PLUGINS": "rlhfless",
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
