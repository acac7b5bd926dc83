"""Functions that behave as the job of a call says, for tests with real processes.

``call.job``: ``echo`` (one token for each sample), ``slow:<s>`` (a token every ``s`` seconds until
stopped), ``steered`` (goes on until it is steered, gives up what it is told to), ``deaf:<s>``
(blocks, hears nothing), ``raise``, ``user``, ``oom``, ``disk``, ``exit``,
``silent`` (no terminal frame), ``flood:<n>`` (n frames of 1 KiB), ``child`` (starts ``sleep``).
Unary calls count their runs in a file of the store, so a test sees how often they really ran.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import time
import zlib
from collections.abc import Iterator
from typing import Any

from functions.context import CallContext, FunctionConfig
from rlhfless.errors import TransientError, UserError
from rlhfless.messages import (
    ExportDone,
    ExportRequest,
    Finished,
    Frame,
    LogprobsDone,
    LogprobsRequest,
    Progress,
    Released,
    RewardDone,
    RewardRequest,
    RolloutDone,
    RolloutRequest,
    Tokens,
    TrainDone,
    TrainRequest,
)


def _who() -> int:
    """Tells instances apart: the process's id, which is the same in all pods, or the pod's name."""
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return os.getpid()
    return zlib.crc32(os.environ["HOSTNAME"].encode()) >> 1


class Probe:
    def __init__(self) -> None:
        self.handlers: Any = {
            RolloutRequest: self.rollout,
            RewardRequest: self.reward,
            LogprobsRequest: self.logprobs,
            TrainRequest: self.train,
            ExportRequest: self.export,
        }

    def rollout(self, request: RolloutRequest, context: CallContext) -> Iterator[Frame]:
        yield from _behave(request, context)
        n = len(request.samples)
        yield Tokens(
            samples=list(range(n)),
            starts=[0] * n,
            counts=[1] * n,
            tokens=[_who()] * n,
            logprobs=bytes(4 * n),
            version=0,
        )
        yield Finished(samples=list(range(n)), reasons=["stop"] * n)
        yield RolloutDone(generated_tokens=n)

    def reward(self, request: RewardRequest, context: CallContext) -> Iterator[Frame]:
        yield from _behave(request, context)
        runs = _count(request.call.store)
        yield RewardDone(scores=[[float(_who())]], totals=[float(runs)])

    def logprobs(self, request: LogprobsRequest, context: CallContext) -> Iterator[Frame]:
        yield from _behave(request, context)
        yield LogprobsDone(logprobs=b"")

    def train(self, request: TrainRequest, context: CallContext) -> Iterator[Frame]:
        yield from _behave(request, context)
        runs = _count(request.call.store)
        yield TrainDone(version=1, metrics={"pid": _who(), "runs": runs})

    def export(self, request: ExportRequest, context: CallContext) -> Iterator[Frame]:
        yield from _behave(request, context)
        yield ExportDone(folder=request.folder, files=[])

    def close(self) -> None:
        print("closed", flush=True)


def _behave(request: Any, context: CallContext) -> Iterator[Frame]:
    kind, _, value = request.call.job.partition(":")
    match kind:
        case "slow":
            while context.stop_reason is None:
                yield Progress(running=1, waiting=0, kv_tokens=_who(), iterations=0)
                time.sleep(float(value))
            if isinstance(request, RolloutRequest):
                yield RolloutDone(unfinished=list(range(len(request.samples))))
        case "steered":
            context.inbox.open()
            while not (taken := context.take()) and context.stop_reason is None:
                yield Progress(running=1, waiting=0, kv_tokens=_who(), iterations=0)
                time.sleep(0.01)
            yield Released(samples=[index for change in taken for index in change.release])
        case "deaf":
            yield Progress(running=1, waiting=0, kv_tokens=_who(), iterations=0)
            time.sleep(float(value))
        case "raise":
            raise ValueError("the handler is broken")
        case "user":
            raise UserError("this cannot work", param="reward.functions", hint="write it otherwise")
        case "oom":
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")
        case "disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case "exit":
            print("goodbye from the probe", flush=True)
            os._exit(7)
        case "flood":
            for i in range(int(value)):
                yield Progress(running=i, waiting=0, kv_tokens=0, iterations=0)
        case "child":
            child = subprocess.Popen(["sleep", "600"])
            yield Progress(running=child.pid, waiting=0, kv_tokens=_who(), iterations=0)
            while context.stop_reason is None:
                time.sleep(0.02)


def _count(store: str) -> int:
    with open(os.path.join(store, "runs"), "ab") as file:
        file.write(b"x")
        return file.tell()


def create(config: FunctionConfig) -> Probe:
    return Probe()


def broken(config: FunctionConfig) -> Probe:
    raise ModuleNotFoundError("No module named 'a_module_that_is_not_there'")


def stuck(config: FunctionConfig) -> Probe:
    time.sleep(600)
    return Probe()


def follow(config: FunctionConfig) -> None:
    """What other workers than the first do: nothing, for as long as that one is there."""
    give_up_s = time.monotonic() + 20
    while True:
        try:
            leader = socket.create_connection((config.ranks.host, config.ranks.port))
            break
        except OSError as error:
            if time.monotonic() > give_up_s:
                raise TransientError("there is no leader") from error
            time.sleep(0.05)
    with contextlib.suppress(ConnectionError):
        leader.recv(1)
    raise TransientError("the leader is gone")
