"""The seam between the controller and the world: five methods, nothing else.

A platform runs function instances somewhere (processes, Ray replicas, pods, a cost model) and
carries calls to them. What a call means is no business of a platform; when an instance runs is no
business of the orchestrator.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol

from rlhfless.engines import PLAIN, EngineOptions
from rlhfless.messages import AnyFrame, FunctionName, Request, SteerRequest

InstanceState = Literal["cold", "idle", "busy", "stopping"]


@dataclass(frozen=True)
class Deployment:
    """How instances of one function are run. ``concurrency``: calls an instance serves at once;
    ``engine``: of rollout instances; ``workers``: processes that make up one training instance,
    each with an accelerator and ``threads`` of its own (``functions.ranks``)."""

    function: FunctionName
    max_instances: int = 1
    concurrency: int = 1
    threads: int = 1
    idle_timeout_s: float = 60.0
    accelerator: str = "cpu"
    price_usd_per_hour: float | None = None
    engine: EngineOptions = PLAIN
    workers: int = 1


@dataclass(frozen=True)
class Instance:
    """A running instance. ``id`` is unique over the platform's life; ``share``: how much of it is
    this platform's, less than all of what several jobs use together."""

    id: str
    function: FunctionName
    state: InstanceState
    calls: int
    share: float = 1.0


class Platform(Protocol):
    def invoke(self, request: Request) -> AsyncGenerator[AnyFrame]:
        """Carry one call to an instance with room, starting one if need be and allowed.

        Waits while every instance is full. Yields the frames of the answer, heartbeats included;
        the last is the terminal frame. Closing the iterator early aborts the call. Raises the
        error a ``Problem`` stands for; ``TransientError`` when the instance dies or its stream
        breaks; ``CapacityError`` when none can be started.
        """
        ...

    async def steer(self, request: SteerRequest) -> bool:
        """Deliver a change to the instance that serves the call ``request.target``, out of turn.

        True: the call takes it, and its stream shows its effect. False: no instance serves the
        call, the call is about to end, or this platform cannot reach single instances; also when
        no answer came in time, and then the change may have been taken all the same: a call that
        goes on after False is left alone or ended. Never raises for the state of an instance.
        """
        ...

    async def scale(self, function: FunctionName, count: int) -> None:
        """Have ``count`` instances ready (bounded by the maximum), and let idle ones above it go.

        Returns at once; starting goes on in the background. Idle instances go first, at once; busy
        ones above ``count`` go when they have finished their calls, unless a call or a later
        ``scale`` needs them.
        """
        ...

    def instances(self) -> tuple[Instance, ...]:
        """What runs now."""
        ...

    async def close(self) -> None:
        """Drain and stop everything this platform started. Leaves nothing behind."""
        ...
