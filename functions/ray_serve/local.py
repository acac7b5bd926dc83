"""Ray for one run on this machine: ``python -m functions.ray_serve.local``.

A child of the controller. Starts Ray and Serve and deploys the agent, says where in one line of
JSON on stdout, and stays until its controller is gone: Ray's processes go with this one, however it
ends.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys

import ray
from ray import serve

from functions.ray_serve.agent import deploy_agent
from rlhfless import lifeline

SERVE_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",  # a replica needs a worker of its own
    "RAY_SERVE_SLOW_STARTUP_WARNING_S": "5",  # no nodes are added here: what waits is told soon
    "RAY_SERVE_SLOW_STARTUP_WARNING_PERIOD_S": "5",
    "RAY_DEDUP_LOGS": "0",
}
OBJECT_STORE_BYTES = 80 * 2**20
"""Calls go through Serve as they are; nothing large lies in Ray's own store."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m functions.ray_serve.local")
    parser.add_argument("--num-cpus", type=int, default=1)
    parser.add_argument("--num-gpus", type=int, default=-1, help="-1: those that there are")
    parser.add_argument("--home", default="")
    parser.add_argument("--lifeline-fd", type=int, default=-1)
    parser.add_argument("--temp-dir", default="")
    options = parser.parse_args(arguments)
    if options.home:
        lifeline.join(options.home)
        lifeline.watch(options.lifeline_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controller, which stops us
    os.environ.update(SERVE_ENVIRONMENT)
    ray.init(
        address="local",
        num_cpus=options.num_cpus,
        num_gpus=None if options.num_gpus < 0 else options.num_gpus,
        _node_ip_address="127.0.0.1",  # Ray lets anybody who reaches it run anything
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=options.temp_dir or None,
    )
    port = _free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    deploy_agent()
    print(json.dumps({"serve_url": f"http://127.0.0.1:{port}"}), flush=True)
    sys.stdin.read()  # until the controller closes it
    serve.shutdown()
    ray.shutdown()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    main(sys.argv[1:])
