"""The replicas of a platform's functions: what runs, what it serves, and the books of it.

Follows what the agent tells, state by state; between them, calls begin and end, and a call's answer
may name a replica before the agent does. A replica is held from when a node has it until it has
ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from controller.ledger import Ledger
from controller.platforms.base import Instance, InstanceState
from rlhfless.messages import FunctionName
from rlhfless.ray_apps import RayReplica, ReplicaPhase

_UNTOLD_S = 5.0
"""So long a replica that answered is believed to be there though the agent has not told of it."""


@dataclass
class Replica:
    """``address``: its own, once an answer named it; ``told``: the agent knows it."""

    id: str
    function: FunctionName
    phase: ReplicaPhase
    since_s: float
    pid: int = 0
    address: str = ""
    calls: int = 0
    told: bool = False
    drained: bool = False

    @property
    def state(self) -> InstanceState:
        if self.phase == "stopping":
            return "stopping"
        if self.phase in ("ready", "leaving"):
            return "busy" if self.calls else "idle"
        return "cold"


class Replicas:
    """``now_s``: the clock of the ledger."""

    def __init__(self, ledger: Ledger, now_s: Callable[[], float]) -> None:
        self._ledger = ledger
        self._now_s = now_s
        self._held: dict[str, Replica] = {}
        self.num_waiting = 0
        """Replicas that no node has yet."""

    def update(self, told: Mapping[FunctionName, Iterable[RayReplica]]) -> None:
        """This is all there is now."""
        now_s = self._now_s()
        seen: set[str] = set()
        self.num_waiting = 0
        for function, replicas in told.items():
            for replica in replicas:
                name = f"{function}-{replica.id}"
                if replica.phase == "waiting" and name not in self._held:
                    self.num_waiting += 1
                    continue
                seen.add(name)
                held = self._held.get(name) or self._begin(name, function, replica.phase, now_s)
                held.phase, held.pid, held.told = replica.phase, replica.pid, True
                self._book(held)
        for name, held in list(self._held.items()):
            if name not in seen and (held.told or now_s - held.since_s > _UNTOLD_S):
                del self._held[name]
                self._ledger.stopped(name, now_s)

    def close(self) -> None:
        for name in list(self._held):
            del self._held[name]
            self._ledger.stopped(name, self._now_s())

    def began(self, function: FunctionName, header: str) -> str:
        """A call of ours is on the replica that ``<id>@<address>`` names; its name here."""
        replica, _, address = header.partition("@")
        name, now_s = f"{function}-{replica}", self._now_s()
        held = self._held.get(name) or self._begin(name, function, "ready", now_s)
        if held.phase in ("waiting", "cold"):
            held.phase = "ready"
        held.address = address
        held.calls += 1
        self._book(held)
        return name

    def ended(self, name: str) -> None:
        held = self._held.get(name)
        if held is not None:
            held.calls -= 1
            self._book(held)

    def get(self, name: str) -> Replica | None:
        return self._held.get(name)

    def of(self, function: FunctionName) -> list[Replica]:
        return [replica for replica in self._held.values() if replica.function == function]

    def all(self) -> list[Replica]:
        return list(self._held.values())

    def instances(self) -> tuple[Instance, ...]:
        return tuple(Instance(r.id, r.function, r.state, r.calls) for r in self._held.values())

    def _begin(
        self, name: str, function: FunctionName, phase: ReplicaPhase, now_s: float
    ) -> Replica:
        replica = self._held[name] = Replica(name, function, phase, now_s)
        self._ledger.started(name, function, now_s)
        return replica

    def _book(self, replica: Replica) -> None:
        if replica.calls:
            self._ledger.phase(replica.id, "busy", self._now_s())
        elif replica.phase in ("ready", "leaving", "stopping"):
            self._ledger.phase(replica.id, "idle", self._now_s())
