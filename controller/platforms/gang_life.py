"""One gang, from its making to the end of its last pod: what is told of it, and its books.

It is one instance, whole or not there: it begins with its first pod on a node, is cold until its
leader is ready, and is held by as many parts of it as nodes have. When any of it ends, all of it is
broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from controller.ledger import Ledger
from controller.platforms.base import Instance, InstanceState
from controller.platforms.gang_status import JobView, Member
from controller.platforms.knative_status import Trouble
from rlhfless.messages import FunctionName

FUNCTION: FunctionName = "training"


@dataclass(eq=False)
class Gang:
    """``nodes``: pods it is to have; ``url``: of its leader, while ``ready``; ``calls``: ours on
    it; ``retired``: it is to go, ``deleted``: its Job is; ``why``: what broke it; ``fault``: of its
    own doing."""

    name: str
    nodes: int
    ledger: Ledger
    now_s: Callable[[], float]
    job: JobView | None = None
    members: dict[str, Member] = field(default_factory=dict)
    ready: bool = False
    was_ready: bool = False
    retired: bool = False
    deleted: bool = False
    url: str = ""
    calls: int = 0
    why: str = ""
    fault: Trouble | None = None
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    _told: bool = False  # of its Job
    _begun: bool = False
    _seen: set[str] = field(default_factory=set)
    _booked: bool = False

    # --- what is told -----------------------------------------------------------------------------

    def take(self, jobs: Mapping[str, JobView], members: Iterable[Member]) -> None:
        """These are all the Jobs and pods there are now."""
        self._take_jobs(jobs)
        self._take_members(members)
        self.book()

    def _take_jobs(self, jobs: Mapping[str, JobView]) -> None:
        found = jobs.get(self.name)
        if found is None:
            if self._told:  # otherwise its making has not come through yet
                self.job = None
                self._break("somebody deleted its Job")
            return
        self._told, self.job = True, found
        if found.ended:
            self._break(found.ended)
        elif not found.suspended:
            self._begun = True
        elif self._begun:
            self._break("Kueue has taken its nodes back")

    def _take_members(self, members: Iterable[Member]) -> None:
        self.members = {m.view.name: m for m in members if m.gang == self.name}
        self._seen |= self.members.keys()
        for member in self.members.values():
            self.fault = self.fault or member.fault
        gone = {n for n, m in self.members.items() if m.view.phase == "gone"}
        lost = (self._seen - self.members.keys()) | gone
        if lost:
            self._break(f"the pod {min(lost)} has ended")

    def _break(self, why: str) -> None:
        if not self.broken.is_set():
            self.why = why
            self.broken.set()
        self.ready = False

    # --- what it is -------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The leader's, once all pods run; empty before, and when one is about to end."""
        phases = [m.view.phase for m in self.members.values()]
        if self.broken.is_set() or self.retired or len(phases) < self.nodes:
            return ""
        if any(phase not in ("cold", "ready") for phase in phases):
            return ""
        return next((m.view.ip for m in self.members.values() if m.index == 0), "")

    @property
    def num_held(self) -> int:
        """Pods that have a node."""
        return sum(m.view.phase not in ("waiting", "gone") for m in self.members.values())

    @property
    def is_gone(self) -> bool:
        return self.deleted and not self.members

    @property
    def is_leaving(self) -> bool:
        stopping = any(m.view.phase == "stopping" for m in self.members.values())
        return self.broken.is_set() or self.retired or stopping

    @property
    def state(self) -> InstanceState:
        if self.is_leaving:
            return "stopping"
        if not self.ready:
            return "cold"
        return "busy" if self.calls else "idle"

    @property
    def instance(self) -> Instance | None:
        """None: no node has any of it."""
        return Instance(self.name, FUNCTION, self.state, self.calls) if self.num_held else None

    def troubles(self) -> list[Trouble]:
        """What keeps its pods from running."""
        return [m.view.trouble for m in self.members.values() if m.view.trouble is not None]

    # --- books ------------------------------------------------------------------------------------

    def book(self) -> None:
        now_s, held = self.now_s(), self.num_held
        if not held:
            self.close()
            return
        if not self._booked:
            self._booked = True
            self.ledger.started(self.name, FUNCTION, now_s, held / self.nodes)
        self.ledger.weigh(self.name, held / self.nodes, now_s)
        if self.was_ready:
            self.ledger.phase(self.name, "busy" if self.calls else "idle", now_s)

    def close(self) -> None:
        if self._booked:
            self._booked = False
            self.ledger.stopped(self.name, self.now_s())
