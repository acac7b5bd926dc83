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
import math
import random
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from controller.ledger import Ledger
from controller.platforms.base import Deployment, Instance
from rlhfless.errors import CapacityError, UserError
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
from simulator.cluster import Cluster, Pool
from simulator.platform.allotment import Allotment
from simulator.platform.capacity import Capacity, Grant, make_nodes
from simulator.platform.costs import SLEEP_S, Costs
from simulator.platform.instance import SimulatedInstance
from simulator.platform.lengths import Responses
from simulator.platform.network import Network
from simulator.platform.preemption import Preemption
from simulator.platform.prefixes import PrefixStore
from simulator.platform.pulls import NodeCache
from simulator.platform.rollout import Engine, RolloutCall
from simulator.platform.slots import Slots
from simulator.platform.variation import Variation
from simulator.platform.work import Work

STEER_S = 1e-3
"""Seconds until a running call has a change."""


@dataclass(frozen=True)
class Holding:
    """That an instance held accelerators from ``start_s`` on; ``grant`` None: a host's CPUs."""

    start_s: float
    grant: Grant | None


class SimulatedPlatform:
    """``controller.platforms.base.Platform`` for one job on ``cluster``. Raises ``UserError`` where
    a function fits nowhere. Use it inside a loop of ``simulator.clock``; ``close`` it at the end.

    ``holdings``: by instance, what it held when. ``preemptions``: nodes taken away so far.
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
    ) -> None:
        self.holdings: dict[str, list[Holding]] = {}
        self._cluster = cluster
        self._costs = costs
        self._ledger = ledger
        self._slots = {d.function: Slots(d) for d in deployments}
        self._sizes = {function: costs.places(function) for function in self._slots}
        _check_room(cluster, self._slots, self._sizes)
        nodes = make_nodes(cluster.pools.values())
        self._shares = cluster.sharing == "time_shared"
        self._capacity = Capacity(nodes, unlimited=cluster.sharing == "unlimited")
        self._allotment = Allotment(
            self._capacity, self._is_awaited, self._could_sleep, self._put_to_sleep
        )
        store = cluster.object_store
        self._network = Network(store.gb_per_s * 1e9, store.latency_ms * 1e-3)
        self._cache = NodeCache(shared=store.node_cache)
        self._variation = Variation(cluster.variation, derive(seed, "variation"))
        self._responses = responses
        limits = costs.limits(self._sizes["rollout"][0][0]) if "rollout" in self._slots else None
        self._prefixes = PrefixStore(
            costs, self._network, 0 if limits is None else limits.kv_token_bytes
        )
        self._work = Work(costs, self._network, objects, self._prefixes)
        self._running: dict[tuple[str, str], RolloutCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closing = False
        rng = random.Random(derive(seed, "preemption"))
        self._preemption = Preemption(nodes, rng, self._notice, self._take_away, self._came_back)

    @property
    def preemptions(self) -> int:
        return self._preemption.count

    # --- the platform's five methods --------------------------------------------------------------

    async def invoke(self, request: Request) -> AsyncGenerator[AnyFrame]:
        function, _ = ROUTES[type(request)]
        carried_s = self._costs.call_s(function)
        if carried_s:
            await asyncio.sleep(carried_s)
        slots = self._slots[function]
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
        slots = self._slots[function]
        if self._closing:
            return
        count = min(count, slots.deployment.max_instances)
        for instance in slots.instances.values():
            instance.retiring = False
        staying = slots.staying
        for _ in range(count - len(staying)):
            self._begin(slots)
        surplus = sorted(staying, key=lambda i: (i.calls > 0, i.used_s))
        for instance in surplus[: max(0, len(staying) - count)]:
            instance.retiring = True
            if instance.life == "ready" and not instance.calls:
                self._let_go(instance)

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
                self._drain(slots.instances[instance_id])

    def crash(self, instance_id: str) -> None:
        """The end of one instance without notice, whatever it does."""
        for slots in self._slots.values():
            if instance_id in slots.instances:
                self._end(slots.instances[instance_id])
                self._serve(slots)

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        for timer in self._timers.values():
            timer.cancel()
        for slots in self._slots.values():
            while (waiter := slots.next_waiting()) is not None:
                waiter.set_exception(CapacityError("the platform is closing"))
            for instance in list(slots.instances.values()):
                self._end(instance)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._preemption.close()

    # --- calls ------------------------------------------------------------------------------------

    async def _rollout(
        self, instance: SimulatedInstance, request: RolloutRequest
    ) -> AsyncGenerator[AnyFrame]:
        assert instance.pool is not None
        cost, limits = self._costs.engine(instance.pool), self._costs.limits(instance.pool)
        engine = Engine(cost, limits, self._responses, self._prefixes)
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
            self._occupy(instance)
            waiter.set_result(instance)
        if not self._closing:
            for _ in range(slots.missing):
                self._begin(slots)
            self._allotment.serve()  # what was started ahead may be awaited now

    def _occupy(self, instance: SimulatedInstance) -> None:
        instance.calls += 1
        instance.retiring = False
        if (timer := self._timers.pop(instance.id, None)) is not None:
            timer.cancel()
        self._ledger.phase(instance.id, "busy", _now())

    def _release(self, slots: Slots, instance: SimulatedInstance) -> None:
        instance.calls -= 1
        instance.used_s = _now()
        if instance.calls or instance.life != "ready":
            return
        if instance.draining:
            self._end(instance)
            self._serve(slots)
            return
        self._ledger.phase(instance.id, "idle", _now())
        self._serve(slots)
        if not instance.calls:
            self._rest(instance)

    def _rest(self, instance: SimulatedInstance) -> None:
        """It has nothing to do: it goes now, or when its time-out is over, or when others need
        what it holds."""
        self._allotment.serve()
        if instance.life != "ready" or instance.calls:
            return
        if instance.retiring:
            self._let_go(instance)
            return
        timeout_s = self._slots[instance.function].deployment.idle_timeout_s
        if timeout_s < math.inf:
            loop = asyncio.get_running_loop()
            self._timers[instance.id] = loop.call_later(timeout_s, self._let_go, instance)

    # --- life -------------------------------------------------------------------------------------

    def _begin(self, slots: Slots) -> None:
        """Wake an instance that sleeps, or start a new one."""
        self._preemption.begin()
        instance = slots.asleep()
        if instance is not None:
            instance.life = "starting"
            self._spawn(self._wake(slots, instance), f"wake-{instance.id}")
            return
        slots.started += 1
        function = slots.deployment.function
        name = f"{function}-{slots.started}"
        instance = SimulatedInstance(
            id=name,
            function=function,
            costs=self._costs,
            network=self._network,
            cache=self._cache,
            slow=self._variation.of_instance(name),
        )
        slots.instances[name] = instance
        self._spawn(self._start(slots, instance), f"start-{name}")

    async def _start(self, slots: Slots, instance: SimulatedInstance) -> None:
        if not await self._hold(instance):
            return
        pool = instance.pool or self._sizes[instance.function][0][0]
        await asyncio.sleep(self._costs.start_s(instance.function, pool))
        disk = (pool.cold_start.disk_gb_per_s or math.inf) * 1e9
        num_bytes = self._costs.start_bytes(instance.function)
        await self._network.transfer(num_bytes, min(instance.bandwidth, disk))
        self._ready(slots, instance)

    async def _wake(self, slots: Slots, instance: SimulatedInstance) -> None:
        if instance.falling_asleep is not None:
            await asyncio.wait({instance.falling_asleep})
        if not await self._hold(instance):
            return
        pool = instance.pool or self._sizes[instance.function][0][0]
        await asyncio.sleep(self._costs.wake_s(instance.function, pool))
        self._ready(slots, instance)

    async def _hold(self, instance: SimulatedInstance) -> bool:
        """Get the instance its accelerators; from then on it is held. False: it is gone."""
        sizes = self._sizes[instance.function]
        if sizes[0][1]:
            spot = instance.function == "rollout"
            grant = await self._allotment.take(instance, sizes, spot=spot)
            if instance.life == "gone":
                self._allotment.give(grant)
                return False
            instance.grant = grant
            self._occupy_nodes(instance, grant)
        held = self.holdings.setdefault(instance.id, [])
        held.append(Holding(_now(), instance.grant))
        self._ledger.started(instance.id, instance.function, _now())
        return True

    def _occupy_nodes(self, instance: SimulatedInstance, grant: Grant) -> None:
        instance.pool = grant.pool
        instance.accelerators = grant.accelerators
        bound = self._cluster.object_store.gb_per_s_per_instance
        network = grant.pool.fabric.network.bytes_per_s * grant.accelerators
        nodes = len(grant.parts)
        instance.bandwidth = min(network, math.inf if bound is None else bound * 1e9 * nodes)

    def _ready(self, slots: Slots, instance: SimulatedInstance) -> None:
        if instance.life == "gone":
            return
        instance.life = "ready"
        instance.used_s = _now()
        self._ledger.phase(instance.id, "idle", _now())
        if instance.draining:
            self._end(instance)
        self._serve(slots)
        if instance.life == "ready" and not instance.calls:
            self._rest(instance)

    def _let_go(self, instance: SimulatedInstance) -> None:
        """An idle instance gives up what it holds."""
        if instance.life != "ready" or instance.calls:
            return
        if self._shares and not instance.draining:
            self._put_to_sleep(instance)
        else:
            self._end(instance)

    def _put_to_sleep(self, instance: SimulatedInstance) -> None:
        instance.life = "asleep"
        if (timer := self._timers.pop(instance.id, None)) is not None:
            timer.cancel()
        self._ledger.phase(instance.id, "cold", _now())
        task = self._spawn(self._fall_asleep(instance), f"sleep-{instance.id}")
        instance.falling_asleep = task

    async def _fall_asleep(self, instance: SimulatedInstance) -> None:
        grant, instance.grant = instance.grant, None
        if grant is not None:
            # Inference weights lie in the host's memory already; a trainer's state has changed.
            trains = instance.function == "training"
            seconds = self._costs.wake_s(instance.function, grant.pool) if trains else SLEEP_S
            await asyncio.sleep(seconds)
        self._ledger.stopped(instance.id, _now())
        if grant is not None:
            self._allotment.give(grant)

    def _end(self, instance: SimulatedInstance) -> None:
        """It is gone, whatever it did."""
        slots = self._slots[instance.function]
        if slots.instances.pop(instance.id, None) is None:
            return
        if (timer := self._timers.pop(instance.id, None)) is not None:
            timer.cancel()
        instance.die()
        grant, instance.grant = instance.grant, None
        self._ledger.stopped(instance.id, _now())
        if grant is not None:
            self._allotment.give(grant)

    # --- room and preemption ----------------------------------------------------------------------

    def _is_awaited(self, instance: SimulatedInstance) -> bool:
        return any(not waiter.done() for waiter in self._slots[instance.function].waiting)

    def _could_sleep(self, wanting: SimulatedInstance) -> Iterable[SimulatedInstance]:
        """Idle instances of other functions, where accelerators are time-shared."""
        if not self._shares:
            return []
        idle = [
            each
            for function, slots in self._slots.items()
            if function != wanting.function
            for each in slots.instances.values()
            if each.life == "ready" and not each.calls
        ]
        return sorted(idle, key=lambda each: each.used_s)

    def _on(self, node_name: str) -> list[SimulatedInstance]:
        return [
            each
            for slots in self._slots.values()
            for each in slots.instances.values()
            if each.grant is not None and any(n.name == node_name for n, _ in each.grant.parts)
        ]

    def _notice(self, node_name: str) -> None:
        for instance in self._on(node_name):
            self._drain(instance)

    def _drain(self, instance: SimulatedInstance) -> None:
        instance.drain()
        if instance.life == "ready" and not instance.calls:
            self._end(instance)
            self._serve(self._slots[instance.function])

    def _take_away(self, node_name: str) -> None:
        for instance in self._on(node_name):
            self._end(instance)
            self._serve(self._slots[instance.function])

    def _came_back(self) -> None:
        self._allotment.serve()

    # --- the rest ---------------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _check_room(
    cluster: Cluster,
    slots: Mapping[FunctionName, Slots],
    sizes: Mapping[FunctionName, Sequence[tuple[Pool, int]]],
) -> None:
    """Where accelerators are not shared, every function must find its own beside the others."""
    if cluster.sharing != "exclusive":
        return
    free = {pool.name: pool.accelerators for pool in cluster.pools.values()}
    for function in sorted(slots, key=lambda f: f == "rollout"):  # rollout gets what is left
        most = slots[function].deployment.max_instances
        for number in range(most):
            home = next(((p, n) for p, n in sizes[function] if free[p.name] >= n), None)
            if home is None:
                raise UserError(
                    f"{function}.max_instances: {most} do not fit beside the other functions of "
                    f"{cluster.name}, whose accelerators are not shared; at most {number} do",
                    param=f"{function}.max_instances",
                    hint=None if number else "use sharing: time_shared, or a larger cluster",
                )
            free[home[0].name] -= home[1]


def _now() -> float:
    return asyncio.get_running_loop().time()
