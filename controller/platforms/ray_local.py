"""A Ray of one's own for a run on this machine: started here, gone when the run ends.

Ray runs in a child process (``functions.ray_serve.local``), which hangs on the controller's
lifeline: the controller itself never imports Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence

import controller
from controller.platforms.base import Deployment
from controller.platforms.ray_cluster import RayCluster
from rlhfless.errors import CapacityError, UserError
from rlhfless.lifeline import Home
from rlhfless.ray_apps import RELEASE_VARIABLE, TOKEN_DIGEST_VARIABLE, token_digest

RELEASE = "run"
START_S = 120.0
_STOP_S = 30.0
_SPARE_CPUS = 2
_LONGEST_FOLDER = 40
"""Ray's sockets add 63 characters, and a Unix socket's path may have 107."""
_TOLD = 20
_log = logging.getLogger(__name__)


def require_ray() -> None:
    """Raises ``UserError`` where Ray Serve is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("Ray is not installed", hint="pip install 'rlhfless[ray]'")


@contextlib.asynccontextmanager
async def local_ray(
    deployments: Sequence[Deployment], log: str, num_cpus: int | None = None
) -> AsyncGenerator[RayCluster, None]:
    """Start Ray with a CPU for every worker that there may be: as on the local platform, more
    instances than cores share the cores. ``log``: file for what Ray's own processes say.

    Raises ``UserError`` where Ray is not installed, ``CapacityError`` when it does not start.
    """
    require_ray()
    if num_cpus is None:
        num_cpus = _SPARE_CPUS + sum(d.max_instances * d.workers for d in deployments)
    token = secrets.token_urlsafe(24)
    home = await asyncio.to_thread(Home)
    with contextlib.ExitStack() as undo:
        undo.callback(home.close)
        folder, scratch = home.file("ray"), home.file("tmp")
        os.mkdir(scratch)
        if len(folder) > _LONGEST_FOLDER:
            folder = tempfile.mkdtemp(prefix="rlhfless-ray-", dir="/tmp")
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
        process = await _spawn(home, folder, scratch, token, num_cpus, log)
        try:
            url = await _said(process, log)
            async with RayCluster(url, RELEASE, token, elastic=False) as cluster:
                yield cluster
        finally:
            await _stop(process)
            await asyncio.to_thread(undo.pop_all().close)


async def _spawn(
    home: Home, folder: str, scratch: str, token: str, num_cpus: int, log: str
) -> asyncio.subprocess.Process:
    arguments = {
        "--num-cpus": str(num_cpus),
        "--home": home.path,
        "--lifeline-fd": str(home.lifeline_fd),
        "--temp-dir": folder,
    }
    file = await asyncio.to_thread(open, log, "ab")
    with file:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "functions.ray_serve.local",
            *(word for pair in arguments.items() for word in pair),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=file,
            env=_environment(token, scratch),
            pass_fds=[home.lifeline_fd],
        )


def _environment(token: str, scratch: str) -> dict[str, str]:
    """Ray's workers find the same code as this process."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(controller.__file__)))
    paths = [os.getcwd(), root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in paths if path)),
        RELEASE_VARIABLE: RELEASE,
        TOKEN_DIGEST_VARIABLE: token_digest(token),
    }
    environment.pop("RAY_ADDRESS", None)  # that is another Ray
    # Nobody else on this machine may use it. Without a token of our own Ray makes one in the home.
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment["TMPDIR"] = scratch  # so what killed replicas leave goes with Ray's own files
    return environment


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


async def _said(process: asyncio.subprocess.Process, log: str) -> str:
    """Where Serve is, once Ray is up."""
    assert process.stdout is not None
    line = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            line = await process.stdout.readline()
    if not line:
        lines = (await asyncio.to_thread(_text, log)).splitlines()
        why = lines[-1] if lines else "it said nothing"
        tail = "\n".join(lines[-_TOLD:])
        _log.warning("Ray did not start:\n%s", tail)
        raise CapacityError(f"Ray did not start here: {why}", hint=f"see {log}")
    url: str = json.loads(line)["serve_url"]
    return url


async def _stop(process: asyncio.subprocess.Process) -> None:
    """In order if it can; what hangs is killed, and its children go with it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await process.stdin.wait_closed()
