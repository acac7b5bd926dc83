"""The stand-ins of a cluster in a process of their own, for whoever has a kubeconfig:

python -m tests.support.standin_server FILE     # written; it runs until it is told to end
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from pathlib import Path

import yaml

from tests.support.knative_cluster import KnativeCluster
from tests.support.knative_platforms import kubeconfig
from tests.support.kube_api import KubeApi


async def main(file: Path) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    with tempfile.TemporaryDirectory() as folder:
        api = KubeApi()
        cluster = KnativeCluster(api, Path(folder), None)
        async with api.serving(*cluster.routes), cluster.running():
            part = file.with_suffix(".part")
            part.write_text(yaml.safe_dump(kubeconfig(api)), encoding="utf-8")
            part.rename(file)
            await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
