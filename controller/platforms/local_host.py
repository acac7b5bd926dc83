"""What the local platforms of one process share: a private folder, the processes that instances are
forked off, a token, names for instances, their logs, and instances themselves (``local_sharing``).

A service has one for all jobs of a replica, so that importing torch is paid for once, in seconds
and in memory. A platform that is given none makes its own, which ends with it. Nothing a host
started outlives it, or its process (``rlhfless.lifeline``).
"""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from controller.homes import open_home
from controller.platforms.base import Deployment, Instance, InstanceState
from controller.platforms.local_instance import LocalInstance, Terms
from controller.platforms.local_logs import LogFiles
from controller.platforms.local_processes import (
    PRELOAD,
    FreshLauncher,
    Launcher,
    ZygoteLauncher,
)
from controller.platforms.local_sharing import Exchange
from rlhfless.errors import CapacityError, of_os_error
from rlhfless.lifeline import Home
from rlhfless.messages import FUNCTION_NAMES, FunctionName


@dataclass(frozen=True)
class LocalOptions:
    """``apps``: ``module:create`` by function, where it is not the function's own.

    ``zygote``: fork instances off a process that has imported torch. Only on Linux, and not on
    CUDA, where a forked process may inherit a driver state it cannot use: such instances are fresh
    processes and take the seconds of their imports. ``preload`` is what the zygote imports beside
    the functions themselves. ``niceness``: how far instances stand back for other processes that
    want to compute, as ``nice`` has it.
    """

    apps: Mapping[FunctionName, str] = field(default_factory=dict)
    zygote: bool = True
    preload: Sequence[str] = PRELOAD
    start_timeout_s: float = 120.0
    grace_s: float = 20.0
    silence_s: float = 60.0
    retry_pause_s: float = 0.5
    niceness: int = 0

    def app(self, function: FunctionName) -> str:
        return self.apps.get(function, f"functions.{function}.app:create")

    def forks(self, accelerator: str) -> bool:
        """Whether instances on this accelerator are forked off the zygote."""
        return self.zygote and accelerator == "cpu" and sys.platform == "linux"


class Guest(Protocol):
    """A platform on this host."""

    async def close(self) -> None: ...


@dataclass(frozen=True)
class _Running:
    """What a host has once it has started."""

    home: Home
    zygote: ZygoteLauncher
    fresh: FreshLauncher


class LocalHost:
    """``async with LocalHost(folder) as host``, then ``LocalPlatform(..., host=host)``.

    ``folder`` gets one log file an instance. It belongs to this host: with ``keep_logs`` false, log
    files go when no platform refers to them any more, and all of them before the first instance and
    at the end. ``functions``: those whose code the zygote imports ahead.
    """

    def __init__(
        self,
        folder: str,
        options: LocalOptions | None = None,
        *,
        functions: Collection[FunctionName] = FUNCTION_NAMES,
        keep_logs: bool = False,
    ) -> None:
        self.options = options or LocalOptions()
        self.logs = LogFiles(folder, keep=keep_logs)
        self.exchange = Exchange()
        self.token = secrets.token_urlsafe(32)
        self.num_started = 0
        self._functions = functions
        self._running: _Running | None = None
        self._guests: list[Guest] = []
        self._closing = False

    async def __aenter__(self) -> LocalHost:
        if self.options.forks("cpu"):
            await self.warm()
        else:
            self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def home(self) -> Home:
        return self.start().home

    @property
    def zygote(self) -> ZygoteLauncher:
        return self.start().zygote

    def start(self) -> _Running:
        """Blocks for some milliseconds the first time."""
        if self._running is None:
            if self._closing:
                raise CapacityError("the platform is closing")
            try:
                self.logs.make_folder()
            except OSError as error:
                raise of_os_error(f"cannot write to {self.logs.folder}", error) from error
            home = open_home()
            apps = [self.options.app(function).partition(":")[0] for function in self._functions]
            zygote = ZygoteLauncher(home, self.logs.path("zygote"), [*self.options.preload, *apps])
            self._running = _Running(home, zygote, FreshLauncher(home))
        return self._running

    async def warm(self) -> None:
        """Begin to import what instances are forked with, so that the first need not wait for all
        of it; at once if that was done and the process lives."""
        await self.zygote.start()

    def create(self, deployment: Deployment) -> LocalInstance:
        """A new instance, not begun yet. Its name is unique over the host's life."""
        self.num_started += 1
        name = f"{deployment.function}-{self.num_started}"
        terms = Terms(
            token=self.token,
            grace_s=self.options.grace_s,
            start_timeout_s=self.options.start_timeout_s,
            silence_s=self.options.silence_s,
            niceness=self.options.niceness,
        )
        app = self.options.app(deployment.function)
        return LocalInstance(name, deployment, app, self.logs.path(name), self.home, terms)

    def launcher(self, deployment: Deployment) -> Launcher:
        running = self.start()
        return running.zygote if self.options.forks(deployment.accelerator) else running.fresh

    def enter(self, guest: Guest) -> None:
        self._guests.append(guest)

    def leave(self, guest: Guest) -> None:
        self._guests.remove(guest)

    def instances(self) -> tuple[Instance, ...]:
        """What runs now, whichever platform it belongs to."""
        return tuple(i.told for pool in self.exchange.pools() for i in pool.instances.values())

    def stats(self) -> dict[tuple[FunctionName, InstanceState], int]:
        """How many instances of each function are in each state. What is not there is 0."""
        return dict(Counter((i.function, i.state) for i in self.instances()))

    async def close(self) -> None:
        """Close what platforms are left, then end everything."""
        if self._closing:
            return
        self._closing = True
        self.exchange.closed = True
        try:
            for guest in list(self._guests):
                await guest.close()
            if self._running is not None:
                await self._running.zygote.close()
                await self._running.fresh.close()
        finally:  # also when closing is itself cancelled: then nobody is asked any more
            if self._running is not None:
                self._running.home.close()
            self.logs.clear()
