"""What a driver tells a job that runs: to stop before its next step, how many instances it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rlhfless.messages import FunctionName
from rlhfless.spec import JobSpec

Stop = Literal["pause", "yield"]
"""``pause``: until somebody resumes it; ``yield``: others' turn, it queues again."""

_GROWS: tuple[FunctionName, ...] = ("rollout", "reference", "reward", "training")
"""Who gets instances beyond the first, in this order."""


@dataclass(frozen=True)
class Heeded:
    """What the job was last told when it asked whether to stop. While it stops it may be asked
    something else."""

    stop: Stop
    reason: str


class JobControl:
    """``bound`` is told of each function's limit whenever it changes. ``controller.control`` says
    what a job asks."""

    def __init__(self, spec: JobSpec, instances: int) -> None:
        self._spec = spec
        self._limits = split(spec, instances)
        self._bound: Callable[[FunctionName, int], None] = lambda _function, _most: None
        self.instances = instances
        self.stop: Stop | None = None
        self.reason = ""
        self.heeded: Heeded | None = None

    def attach(self, bound: Callable[[FunctionName, int], None]) -> None:
        self._bound = bound
        for function, most in self._limits.items():
            bound(function, most)

    def hold(self, instances: int) -> None:
        """The job holds so many instances now."""
        if instances == self.instances:
            return
        self.instances = instances
        limits = split(self._spec, instances)
        for function, most in limits.items():
            if most != self._limits[function]:
                self._bound(function, most)
        self._limits = limits

    def ask(self, stop: Stop | None, reason: str = "") -> None:
        """To stop before its next step, or no longer to."""
        self.stop, self.reason = stop, reason

    def stopping(self) -> str | None:
        if self.stop is None:
            return None
        self.heeded = Heeded(self.stop, self.reason)
        return self.reason

    def most(self, function: FunctionName) -> int | None:
        return self._limits.get(function)


def least_instances(spec: JobSpec) -> int:
    """One of each function: scoring runs beside the rollout, and training state stays where it
    is."""
    return len(spec.functions())


def most_instances(spec: JobSpec) -> int:
    return sum(spec.function(function).max_instances for function in spec.functions())


def split(spec: JobSpec, instances: int) -> dict[FunctionName, int]:
    """How many of its instances each function of a job may have: one each, and what is left goes to
    the rollout first."""
    limits: dict[FunctionName, int] = dict.fromkeys(spec.functions(), 1)
    left = instances - len(limits)
    for function in _GROWS:
        if function in limits and left > 0:
            more = min(left, spec.function(function).max_instances - 1)
            limits[function] += more
            left -= more
    return limits
