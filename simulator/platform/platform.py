"""The simulated platform: instances with cold starts, capacity, prices and preemption.

An instance is started when a call finds no room, waits for its accelerators, reads its weights and
serves call after call. Where accelerators are time-shared (``ClusterSpec.sharing``), an instance
that has nothing to do gives them up when another function needs them or when the controller lets
it go: it sleeps, its weights in the host's memory, and wakes in seconds; where they are not, it
ends, and its successor starts from nothing. What holds accelerators is on the ledger, what sleeps
is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from controller.ledger import Ledger
from controller.platforms.base import Deployment, Instance
from rlhfless.errors import CapacityError, InternalError
from rlhfless.messages import (
    ROUTES,
    AnyFrame,
    FunctionName,
    Heartbeat,
    Request,
    RolloutRequest,
    SteerRequest,
)
from rlhfless.objects import ObjectStore
from rlhfless.seeds import derive
from simulator.cluster import Cluster
from simulator.platform.costs import Costs
from simulator.platform.instance import SimulatedInstance
from simulator.platform.lengths import Responses
from simulator.platform.lives import Holding, Lives
from simulator.platform.network import Network
from simulator.platform.prefixes import PrefixStore
from simulator.platform.rollout import Engine, RolloutCall
from simulator.platform.slots import Slots
from simulator.platform.variation import Variation
from simulator.platform.work import Work

STEER_S = 1e-3
"""Seconds until a running call has a change."""


class SimulatedPlatform:
    """``controller.platforms.base.Platform`` for one job on ``cluster``. Raises ``UserError`` where
    a function fits nowhere. Use it inside a loop of ``simulator.clock``; ``close`` it at the end.

    ``holdings``: by instance, what it held when. ``preemptions``: nodes taken away so far.
    ``tells``: as ``simulator.platform.rollout.Engine`` has it.
    """

    def __init__(
        self,
        deployments: Sequence[Deployment],
        cluster: Cluster,
        costs: Costs,
        responses: Responses,
        objects: ObjectStore,
        ledger: Ledger,
        seed: int = 0,
        *,
        tells: bool = False,
    ) -> None:
        self._tells = tells
        self._costs = costs
        self._ledger = ledger
        self._slots = {d.function: Slots(d) for d in deployments}
        store = cluster.object_store
        network = Network(store.gb_per_s * 1e9, store.latency_ms * 1e-3)
        self._lives = Lives(self._slots, cluster, costs, network, ledger, self._serve, seed)
        self._variation = Variation(cluster.variation, derive(seed, "variation"))
        self._responses = responses
        self._prefixes = PrefixStore(costs, network)
        self._work = Work(costs, network, objects, self._prefixes)
        self._running: dict[tuple[str, str], RolloutCall] = {}
        self._closing = False

    @property
    def holdings(self) -> Mapping[str, Sequence[Holding]]:
        return self._lives.holdings

    @property
    def preemptions(self) -> int:
        return self._lives.preemptions

    # --- the platform's five methods --------------------------------------------------------------

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame]:
        function, _ = ROUTES[type(request)]
        slots = self._of(function)
        carried_s = self._costs.call_s(function)
        if carried_s:
            await asyncio.sleep(carried_s)
        instance = await self._acquire(slots)
        try:
            if isinstance(request, RolloutRequest):
                async with aclosing(self._rollout(instance, request)) as frames:
                    async for frame in frames:
                        yield frame
                return
            began_s = _now()
            loaded_s = await instance.load()
            assert not isinstance(request, SteerRequest)  # steered, not invoked
            done = await self._work.do(instance, request)
            yield Heartbeat(busy_s=_now() - began_s, load_s=loaded_s)
            yield done
        finally:
            self._release(slots, instance)

    async def steer(self, request: SteerRequest) -> bool:
        await asyncio.sleep(STEER_S)
        call = self._running.get((request.call.job, request.target))
        return call is not None and call.steer(request)

    async def scale(self, function: FunctionName, count: int) -> None:
        slots = self._of(function)
        if self._closing:
            return
        count = min(count, slots.deployment.max_instances)
        for instance in slots.instances.values():
            instance.retiring = False
        staying = slots.staying
        for _ in range(min(count - len(staying), slots.room)):
            self._lives.begin(slots)
        surplus = sorted(staying, key=lambda i: (i.calls > 0, i.used_s))
        for instance in surplus[: max(0, len(staying) - count)]:
            instance.retiring = True
            if instance.life == "ready" and not instance.calls:
                self._lives.let_go(instance)

    def instances(self) -> tuple[Instance, ...]:
        return tuple(
            Instance(i.id, i.function, i.state, i.calls)
            for slots in self._slots.values()
            for i in slots.instances.values()
            if i.life != "asleep"
        )

    def preempt(self, instance_id: str) -> None:
        """Notice to one instance, as ``LocalPlatform.preempt``: it drains, hands back its work and
        ends."""
        for slots in self._slots.values():
            if instance_id in slots.instances:
                self._lives.drain(slots.instances[instance_id])

    def crash(self, instance_id: str) -> None:
        """The end of one instance without notice, whatever it does."""
        for slots in self._slots.values():
            if instance_id in slots.instances:
                self._lives.end(slots.instances[instance_id])
                self._serve(slots)

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        for slots in self._slots.values():
            while (waiter := slots.next_waiting()) is not None:
                waiter.set_exception(CapacityError("the platform is closing"))
        await self._lives.close()

    # --- calls ------------------------------------------------------------------------------------

    async def _rollout(
        self, instance: SimulatedInstance, request: RolloutRequest
    ) -> AsyncGenerator[AnyFrame]:
        assert instance.pool is not None
        cost, limits = self._costs.engine(instance.pool), self._costs.limits(instance.pool)
        engine = Engine(cost, limits, self._responses, self._prefixes, self._tells)
        call = RolloutCall(request, instance, engine, self._variation.of_call(request.call.id))
        name = (request.call.job, request.call.id)
        self._running[name] = call
        try:
            async with aclosing(call.frames()) as frames:
                async for frame in frames:
                    yield frame
        finally:
            if self._running.get(name) is call:
                del self._running[name]

    def _of(self, function: FunctionName) -> Slots:
        try:
            return self._slots[function]
        except KeyError:
            raise InternalError(f"the function {function} is not deployed here") from None

    async def _acquire(self, slots: Slots) -> SimulatedInstance:
        if self._closing:
            raise CapacityError("the platform is closing")
        waiter: asyncio.Future[SimulatedInstance] = asyncio.get_running_loop().create_future()
        slots.waiting.append(waiter)
        self._serve(slots)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release(slots, waiter.result())
            raise

    def _serve(self, slots: Slots) -> None:
        """Give ready instances to those who wait, then start what they still lack."""
        while slots.waiting and (instance := slots.pick()) is not None:
            waiter = slots.next_waiting()
            if waiter is None:
                break
            self._lives.occupy(instance)
            waiter.set_result(instance)
        if not self._closing:
            for _ in range(slots.missing):
                self._lives.begin(slots)
            self._lives.serve()  # what was started ahead may be awaited now

    def _release(self, slots: Slots, instance: SimulatedInstance) -> None:
        instance.calls -= 1
        instance.used_s = _now()
        slots.has_room(instance)
        if instance.calls or instance.life != "ready":
            return
        if instance.draining:
            self._lives.end(instance)
            self._serve(slots)
            return
        self._ledger.phase(instance.id, "idle", _now())
        self._serve(slots)
        if not instance.calls:
            self._lives.rest(instance)


def _now() -> float:
    return asyncio.get_running_loop().time()
