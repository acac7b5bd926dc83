"""Local platforms on one host whose processes are make-believe, for virtual time.

Everything is real but the process, its socket and what is said over it. ``Life`` notes when each
process began and ended, which the ledgers of the platforms must add up to.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.ledger import Ledger
from controller.platforms.base import Deployment
from controller.platforms.local import LocalPlatform
from controller.platforms.local_host import LocalHost
from controller.platforms.local_instance import LocalInstance
from controller.platforms.local_processes import Process
from rlhfless.errors import InternalError, TransientError
from rlhfless.messages import AnyFrame, FunctionName, Heartbeat, RolloutDone
from tests.support.processes import options, rollout

COLD_S = 1.0
EXIT_S = 0.05


@dataclass
class Life:
    """Of a make-believe process; loop seconds."""

    instance: str
    began_s: float
    ended_s: float | None = None

    def held_s(self, now_s: float) -> float:
        return (now_s if self.ended_s is None else self.ended_s) - self.began_s


class _Process(Process):
    def send(self, number: signal.Signals) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0 if number == signal.SIGKILL else EXIT_S, self.end, -number)

    def end(self, status: int) -> None:
        if not self.exited.done():
            self.exited.set_result(status)


class FakeInstance(LocalInstance):
    """A call for job ``x:<s>`` takes ``s`` seconds."""

    async def until_ready(self) -> None:
        assert self.process is not None
        await asyncio.wait({self.process.exited}, timeout=COLD_S)
        if self.process.exited.done():
            raise InternalError(f"{self.id} could not start")
        self.ready = True

    async def call(self, path: str, body: bytes) -> AsyncGenerator[AnyFrame, None]:
        assert self.process is not None
        over = False
        try:
            yield Heartbeat()
            await asyncio.wait({self.process.exited}, timeout=float(body.split(b"x:")[1][:4]))
            over = True
            if self.process.exited.done():
                raise TransientError(f"{self.id} died")
            yield RolloutDone()
        finally:
            self._haunted = self._haunted or not over


class FakeLauncher:
    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.processes: dict[str, _Process] = {}

    async def spawn(self, config: Mapping[str, Any]) -> Process:
        loop = asyncio.get_running_loop()
        name = str(config["log"]).rsplit("/", 1)[-1].removesuffix(".log")
        process = _Process(len(self.lives), loop.create_future())
        life = Life(name, loop.time())
        self.lives.append(life)
        self.processes[name] = process

        def ended(_: object) -> None:
            life.ended_s = loop.time()

        process.exited.add_done_callback(ended)
        return process

    def kill(self, name: str) -> None:
        self.processes[name].end(-9)


class FakeHost(LocalHost):
    """``async with`` it as with the real one; ``launched`` knows every process there was."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder / "logs"), options(zygote=False, grace_s=1.0))
        self.launched = FakeLauncher()

    def create(self, deployment: Deployment) -> LocalInstance:
        made = super().create(deployment)
        made.__class__ = FakeInstance
        return made

    def launcher(self, deployment: Deployment) -> FakeLauncher:
        return self.launched


def guest(
    host: LocalHost,
    *deployments: Deployment,
    kind: str | None = "k",
    ledger: Ledger | None = None,
) -> LocalPlatform:
    """A platform on ``host``, all its functions of one kind."""
    asked = deployments or (Deployment("rollout", max_instances=2),)
    kinds: dict[FunctionName, str] = {} if kind is None else {d.function: kind for d in asked}
    return LocalPlatform(asked, ledger=ledger or Ledger(), host=host, kinds=kinds)


async def call(platform: LocalPlatform, seconds: float = 0.5) -> list[AnyFrame]:
    return [frame async for frame in platform.invoke(rollout(f"x:{seconds:04.2f}"))]


def ids(platform: LocalPlatform, state: str | None = None) -> list[str]:
    return [i.id for i in platform.instances() if state in (None, i.state)]
