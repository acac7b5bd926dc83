"""Calls of one function that wait for a pod, and the demand that brings pods up.

Knative scales by the requests there are, so a call that waits is told to it by a request that asks
nothing (``poke``), which the activator holds until a pod has room. The call itself is sent only
when a ready pod has room for it: its time, which Knative bounds, is not spent on a cold start, and
a function that is asked for ten instances shows ten requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import httpx

from controller.platforms.base import Deployment
from controller.platforms.knative_calls import NotAdmittedError, poke
from controller.platforms.knative_manifest import Lane
from controller.platforms.knative_pods import Pods
from controller.platforms.knative_status import ServiceView, Trouble
from rlhfless.errors import CapacityError, RlhflessError, TransientError

_POKE_PAUSE_S = 0.2
"""Between two pokes: ready pods with room answer them at once."""
_log = logging.getLogger(__name__)


class Route:
    """One Service of a function: ``name`` in the API, ``view`` of its state; ``shared``: other
    jobs may use it, too, and what its pods do for those is not known here."""

    def __init__(
        self, name: str, lane: Lane, pods: Pods, concurrency: int, *, shared: bool = False
    ) -> None:
        self.name = name
        self.lane = lane
        self.shared = shared
        self.view = ServiceView()
        self.unplaced = 0  # calls sent of which we do not know the pod yet
        self.pokes: set[asyncio.Task[None]] = set()
        self.wanted_pokes = 0
        self._pods = pods
        self._concurrency = concurrency

    @property
    def url(self) -> str:
        """Where calls go. Raises ``NotAdmittedError`` where that is not known any more."""
        if self.view.url is None:
            raise NotAdmittedError(TransientError(f"the service {self.name} has lost its route"))
        return self.view.url

    @property
    def num_ready(self) -> int:
        return len(self._pods.ready(self.name)) if self.view.url else 0

    @property
    def num_free(self) -> int:
        """Calls that ready pods have room for."""
        pods = self._pods.ready(self.name) if self.view.url else []
        return sum(max(0, self._concurrency - pod.calls) for pod in pods) - self.unplaced

    def troubles(self) -> list[Trouble]:
        own = [self.view.trouble] if self.view.trouble is not None else []
        return [*own, *self._pods.troubles(self.name)]


class KnativePool:
    """``most``: instances at a time; ``warm``: instances that ``scale`` asked for."""

    def __init__(
        self,
        deployment: Deployment,
        routes: list[Route],
        client: httpx.AsyncClient,
        start_timeout_s: float,
        request_s: float,
    ) -> None:
        self.deployment = deployment
        self.routes = routes
        self.most = deployment.max_instances
        self.in_flight = 0
        self.warm = 0
        self._client = client
        self._start_timeout_s = start_timeout_s
        self._request_s = request_s
        self._waiting: deque[asyncio.Future[Route]] = deque()
        self._barren_since_s: float | None = None

    # --- slots ------------------------------------------------------------------------------------

    async def acquire(self, *, first: bool) -> Route:
        """A route with a ready pod that has room; in order of asking, ``first`` before all others.

        Raises ``CapacityError`` when no pod came up in time, and what a ``Trouble`` that cannot
        pass stands for at once.
        """
        waiter: asyncio.Future[Route] = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        self.serve()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result(), placed=False)
            raise
        finally:
            self.serve()

    def release(self, route: Route, *, placed: bool) -> None:
        """The call of a slot has ended; ``placed``: its pod had been told."""
        self.in_flight -= 1
        if not placed:
            route.unplaced -= 1
        self.serve()

    def serve(self) -> None:
        """Something has changed: give out what there is, ask for what is missing."""
        while self._waiting and self.in_flight < self.most * self.deployment.concurrency:
            if self._waiting[0].done():
                self._waiting.popleft()
                continue
            route = next((r for r in self.routes if r.num_free > 0), None)
            if route is None:
                break
            self.in_flight += 1
            route.unplaced += 1
            self._waiting.popleft().set_result(route)
        self._note_barren()
        self._ask()

    def fail_waiting(self, error: RlhflessError) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    @property
    def num_waiting(self) -> int:
        return sum(not waiter.done() for waiter in self._waiting)

    def check(self) -> None:
        """From time to time: end the waiting for what does not come."""
        if self._barren_since_s is None:
            return
        troubles = [trouble for route in self.routes for trouble in route.troubles()]
        fatal = next((trouble for trouble in troubles if trouble.fatal), None)
        if fatal is not None and all(any(t.fatal for t in r.troubles()) for r in self.routes):
            self.fail_waiting(fatal.error())
            return
        waited_s = asyncio.get_running_loop().time() - self._barren_since_s
        if waited_s < self._start_timeout_s:
            return
        why = "; ".join(dict.fromkeys(trouble.detail for trouble in troubles))
        detail = f"no {self.deployment.function} pod was ready within {self._start_timeout_s:g} s"
        hint = next((trouble.hint for trouble in troubles if trouble.hint), None)
        self.fail_waiting(CapacityError(f"{detail}: {why}" if why else detail, hint=hint))
        self._barren_since_s = None

    def _note_barren(self) -> None:
        if not self.num_waiting or any(route.num_ready for route in self.routes):
            self._barren_since_s = None
        elif self._barren_since_s is None:
            self._barren_since_s = asyncio.get_running_loop().time()

    # --- demand -----------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Spread what is missing over the routes: the first that can take it and comes up."""
        room = self.most * self.deployment.concurrency - self.in_flight
        ready = sum(route.num_ready for route in self.routes)
        warming = max(0, min(self.warm, self.most) - ready)
        missing = max(min(self.num_waiting, room), warming * self.deployment.concurrency)
        for route in self.routes:
            last = route is self.routes[-1]
            most = (route.lane.max_instances - route.num_ready) * self.deployment.concurrency
            stuck = not last and any(route.troubles())  # no spot node to be had, for instance
            route.wanted_pokes = 0 if route.view.url is None else min(missing, max(0, most))
            missing -= 0 if stuck else route.wanted_pokes
            while len(route.pokes) < route.wanted_pokes:
                task = asyncio.create_task(self._poke(route))
                route.pokes.add(task)
                task.add_done_callback(route.pokes.discard)
            while len(route.pokes) > route.wanted_pokes:  # held ones would bring up further pods
                route.pokes.pop().cancel()

    async def _poke(self, route: Route) -> None:
        while True:
            assert route.view.url is not None
            problem = await poke(self._client, route.view.url, self._request_s)
            if problem:
                _log.info("%s: %s", route.name, problem)
            await asyncio.sleep(_POKE_PAUSE_S)

    async def close(self) -> None:
        self.warm = 0
        self.fail_waiting(CapacityError("the platform is closing"))
        pokes = [task for route in self.routes for task in route.pokes]
        for task in pokes:
            task.cancel()
        await asyncio.gather(*pokes, return_exceptions=True)
