"""An instance that is told to go before it serves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.processes import wait_for_handler

FIRST = """
import os
from functions.host import HostConfig, run

os.getpid = lambda: 1
run(HostConfig(function="reward", app="tests.apps.probe:stuck", token="t", workdir={!r}))
"""


def test_a_containers_first_process_ends_though_it_still_loads(tmp_path: Path) -> None:
    """The kernel keeps signals from it that it does not handle: it would load, and serve."""
    command = [sys.executable, "-c", FIRST.format(str(tmp_path))]
    with subprocess.Popen(command) as process:
        try:
            wait_for_handler(process.pid, signal.SIGTERM)
            process.terminate()
            assert process.wait(30) == 1
        finally:
            process.kill()
