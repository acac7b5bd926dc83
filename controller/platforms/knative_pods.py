"""The pods of a platform's functions: what runs, what it serves, and the books of it.

Follows what the API server tells, snapshot by snapshot; between them, calls begin and end. A pod
is held from when a node has it until its process has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controller.ledger import Ledger
from controller.platforms.base import Instance, InstanceState
from controller.platforms.knative_status import PodView, Trouble
from rlhfless.messages import FunctionName


@dataclass
class Pod:
    """``view``: as last told; ``calls``: of ours on it."""

    view: PodView
    function: FunctionName
    calls: int = 0

    @property
    def state(self) -> InstanceState:
        if self.view.phase == "stopping":
            return "stopping"
        if self.view.phase == "ready":
            return "busy" if self.calls else "idle"
        return "cold"


class Pods:
    """``functions``: by name of their Knative Service; ``now_s``: the clock of the ledger."""

    def __init__(
        self, functions: dict[str, FunctionName], ledger: Ledger, now_s: Callable[[], float]
    ) -> None:
        self._functions = functions
        self._ledger = ledger
        self._now_s = now_s
        self._waiting: dict[str, PodView] = {}
        self._held: dict[str, Pod] = {}
        self._num_users: dict[str, int] = {}

    def share(self, service: str, num_users: int) -> None:
        """So many jobs use the pods of a service; each books an equal part of them."""
        self._num_users[service] = num_users
        for name, pod in self._held.items():
            if pod.view.service == service:
                self._ledger.weigh(name, self._share(pod.view), self._now_s())

    def forget(self, service: str) -> None:
        """Its pods, which may go on, are not ours any more."""
        del self._functions[service]
        self._waiting = {n: view for n, view in self._waiting.items() if view.service != service}
        for name in [name for name, pod in self._held.items() if pod.view.service == service]:
            self._end(name)

    def update(self, views: Iterable[PodView]) -> None:
        """This is all there is now."""
        now_s = self._now_s()
        told = {v.name: v for v in views if v.service in self._functions and v.phase != "gone"}
        for name in self._held.keys() - told.keys():
            self._end(name)
        self._waiting = {}
        for name, view in told.items():
            if name not in self._held and view.phase == "waiting":
                self._waiting[name] = view
                continue
            if name not in self._held:
                function = self._functions[view.service]
                self._held[name] = Pod(view, function)
                self._ledger.started(name, function, now_s, self._share(view))
            self._held[name].view = view
            self._book(self._held[name])

    def close(self) -> None:
        self.update(())

    def began(self, name: str) -> bool:
        """A call of ours is on this pod; False: we have not been told of it."""
        pod = self._held.get(name)
        if pod is None:
            return False
        pod.calls += 1
        self._book(pod)
        return True

    def ended(self, name: str) -> None:
        pod = self._held.get(name)
        if pod is not None:
            pod.calls -= 1
            self._book(pod)

    def address(self, name: str) -> str:
        """Its IP address; empty if it is not there."""
        pod = self._held.get(name)
        return pod.view.ip if pod is not None else ""

    def leaving(self) -> dict[str, FunctionName]:
        """Pods that are ended while calls of ours run on them."""
        held = self._held.items()
        return {n: pod.function for n, pod in held if pod.calls and pod.state == "stopping"}

    def ready(self, service: str) -> list[Pod]:
        held = self._held.values()
        return [p for p in held if p.view.service == service and p.view.phase == "ready"]

    def troubles(self, service: str) -> list[Trouble]:
        """What keeps pods of a service from running."""
        views = [*self._waiting.values(), *(pod.view for pod in self._held.values())]
        return [v.trouble for v in views if v.service == service and v.trouble is not None]

    def instances(self) -> tuple[Instance, ...]:
        return tuple(
            Instance(name, pod.function, pod.state, pod.calls, self._share(pod.view))
            for name, pod in self._held.items()
        )

    def _share(self, view: PodView) -> float:
        return 1 / self._num_users.get(view.service, 1)

    @property
    def num_left(self) -> int:
        """Pods that are there in any way."""
        return len(self._held) + len(self._waiting)

    def _end(self, name: str) -> None:
        del self._held[name]
        self._ledger.stopped(name, self._now_s())

    def _book(self, pod: Pod) -> None:
        if pod.calls:
            self._ledger.phase(pod.view.name, "busy", self._now_s())
        elif pod.view.phase in ("ready", "stopping"):
            self._ledger.phase(pod.view.name, "idle", self._now_s())
