"""The other workers of a training instance, as workers of Ray Train.

The replica is the group's leader (``functions.ranks``); Ray Train places the rest, each with
resources of its own, on whichever nodes have them, and starts them. What a worker runs is the same
program as everywhere, as a process of its own, whose main thread is its own.

Not by ``TorchTrainer`` itself: that makes torch's process group of Ray Train's workers alone, and
ours has the leader in it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import ray

from functions.host import TOKEN_VARIABLE
from rlhfless.ray_apps import RayFunction, Resources

_log = logging.getLogger("functions.ray_serve")


@dataclass(frozen=True)
class Meeting:
    """Where the leader waits for its followers, and how many workers the group has."""

    host: str
    port: int
    size: int


def start(
    function: RayFunction, each: Resources, meeting: Meeting, ended: Callable[[], None]
) -> None:
    """Have Ray Train run the followers; returns at once. ``ended`` is called, in a thread, when
    they have, in order or not. They end with their leader, and with this process."""
    driver = ray.remote(num_cpus=0, max_retries=0)(fit)
    told = msgspec.json.encode(function).decode()
    ref = driver.remote(told, _resources(each), asdict(meeting))

    def wait() -> None:
        try:
            ray.get(ref)
        except ray.exceptions.RayError as error:  # the group broke; its leader tells its callers
            _log.warning("Ray Train's workers ended: %s", error)
        ended()

    threading.Thread(target=wait, name="followers", daemon=True).start()


def fit(told: str, each: dict[str, float], meeting: dict[str, Any]) -> None:
    """A Ray task, the driver of Ray Train: raises when a worker fails."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    with tempfile.TemporaryDirectory(prefix="rlhfless-train-") as folder:
        DataParallelTrainer(
            run_follower,
            train_loop_config={"function": told, "meeting": meeting},
            scaling_config=ScalingConfig(
                num_workers=meeting["size"] - 1,
                use_gpu=each.get("GPU", 0) > 0,
                resources_per_worker=each,
                placement_strategy="PACK",
            ),
            run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=0)),
        ).fit()


def run_follower(config: Mapping[str, Any]) -> None:
    """In a worker of Ray Train. Raises ``CalledProcessError`` when the follower ended badly."""
    from ray import train

    function = msgspec.json.decode(config["function"], type=RayFunction)
    meeting = Meeting(**config["meeting"])
    place = {
        "RANK": train.get_context().get_world_rank() + 1,
        "WORLD_SIZE": meeting.size,
        "LOCAL_RANK": 0,  # each sees its own accelerators only
        "MASTER_ADDR": meeting.host,
        "MASTER_PORT": meeting.port,
        TOKEN_VARIABLE: function.token,
    }
    with tempfile.TemporaryDirectory(prefix="rlhfless-", ignore_cleanup_errors=True) as scratch:
        subprocess.run(  # noqa: S603  (our own program)
            command(function, meeting.size, scratch),
            env=os.environ | {name: str(value) for name, value in place.items()},
            check=True,
        )


def command(function: RayFunction, size: int, scratch: str) -> list[str]:
    options = {
        "function": function.function,
        "app": function.app,
        "threads": function.threads,
        "accelerator": function.accelerator,
        "workers": size,
        "workdir": scratch,
        "engine": msgspec.json.encode(function.engine).decode(),
    }
    return [sys.executable, "-m", "functions.host", *(f"--{k}={v}" for k, v in options.items())]


def _resources(each: Resources) -> dict[str, float]:
    """As Ray Train names them."""
    named = {"CPU": each.num_cpus, "GPU": each.num_gpus, "memory": float(each.memory_bytes)}
    named |= each.custom
    if each.accelerator_type:
        named[f"accelerator_type:{each.accelerator_type}"] = 0.001
    return {name: amount for name, amount in named.items() if amount}
