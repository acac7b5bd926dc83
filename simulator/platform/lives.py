"""The lives of simulated instances: started, held, put to sleep, woken, preempted, gone.

What holds accelerators is on the ledger: cold while it starts, wakes or falls asleep, then busy or
idle. What sleeps, its weights in the host's memory, is not.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.ledger import Ledger
from rlhfless.messages import FunctionName
from rlhfless.seeds import derive
from simulator.cluster import Cluster
from simulator.platform.allotment import Allotment
from simulator.platform.capacity import Capacity, Grant, check_room, make_nodes
from simulator.platform.costs import SLEEP_S, Costs
from simulator.platform.instance import SimulatedInstance
from simulator.platform.network import Network
from simulator.platform.preemption import Preemption
from simulator.platform.pulls import NodeCache
from simulator.platform.slots import Slots
from simulator.platform.variation import Variation


@dataclass(frozen=True)
class Holding:
    """That an instance held accelerators from ``start_s`` on; ``grant`` None: a host's CPUs."""

    start_s: float
    grant: Grant | None


class Lives:
    """Of all instances of a platform. ``changed`` is told of a function whose instances became
    ready or went away: calls may wait for them. Raises ``UserError`` where a function fits nowhere.
    """

    def __init__(
        self,
        slots: Mapping[FunctionName, Slots],
        cluster: Cluster,
        costs: Costs,
        network: Network,
        ledger: Ledger,
        changed: Callable[[Slots], None],
        seed: int,
    ) -> None:
        self.holdings: dict[str, list[Holding]] = {}
        self._slots = slots
        self._cluster = cluster
        self._costs = costs
        self._network = network
        self._ledger = ledger
        self._changed = changed
        self._sizes = {function: costs.places(function) for function in slots}
        most = {function: each.deployment.max_instances for function, each in slots.items()}
        check_room(cluster, most, self._sizes)
        nodes = make_nodes(cluster.pools.values())
        self._shares = cluster.sharing == "time_shared"
        capacity = Capacity(nodes, unlimited=cluster.sharing == "unlimited")
        self._allotment = Allotment(
            capacity, self._is_awaited, self._could_sleep, self._put_to_sleep
        )
        self._cache = NodeCache(shared=cluster.object_store.node_cache)
        self._variation = Variation(cluster.variation, derive(seed, "variation"))
        rng = random.Random(derive(seed, "preemption"))
        self._preemption = Preemption(
            nodes, rng, self._notice, self._take_away, self._allotment.serve
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def preemptions(self) -> int:
        return self._preemption.count

    async def close(self) -> None:
        """End everything, at once. Raises what went wrong in a life, a defect of the simulation, as
        calls do that waited for an instance then."""
        for timer in self._timers.values():
            timer.cancel()
        for slots in self._slots.values():
            for instance in list(slots.instances.values()):
                self.end(instance)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._preemption.close()
        if self._failures:
            raise self._failures[0]

    def serve(self) -> None:
        """Calls have come that wait for instances, which may be waiting for accelerators."""
        self._allotment.serve()

    # --- what the platform asks for ---------------------------------------------------------------

    def begin(self, slots: Slots) -> None:
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

    def occupy(self, instance: SimulatedInstance) -> None:
        """It is given a call."""
        instance.calls += 1
        instance.retiring = False
        if (timer := self._timers.pop(instance.id, None)) is not None:
            timer.cancel()
        self._ledger.phase(instance.id, "busy", _now())

    def rest(self, instance: SimulatedInstance) -> None:
        """It has nothing to do: it goes now, or when its time-out is over, or when others need
        what it holds."""
        self._allotment.serve()
        if instance.life != "ready" or instance.calls:
            return
        if instance.retiring:
            self.let_go(instance)
            return
        timeout_s = self._slots[instance.function].deployment.idle_timeout_s
        if timeout_s < math.inf:
            loop = asyncio.get_running_loop()
            self._timers[instance.id] = loop.call_later(timeout_s, self.let_go, instance)

    def let_go(self, instance: SimulatedInstance) -> None:
        """An idle instance gives up what it holds."""
        if instance.life != "ready" or instance.calls:
            return
        if self._shares and not instance.draining:
            self._put_to_sleep(instance)
        else:
            self.end(instance)

    def drain(self, instance: SimulatedInstance) -> None:
        """It gets notice: it ends when its calls have handed back what they have."""
        instance.drain()
        if instance.life == "ready" and not instance.calls:
            self.end(instance)
            self._changed(self._slots[instance.function])

    def end(self, instance: SimulatedInstance) -> None:
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

    # --- a life -----------------------------------------------------------------------------------

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
        slots.has_room(instance)
        self._ledger.phase(instance.id, "idle", _now())
        if instance.draining:
            self.end(instance)
        self._changed(slots)
        if instance.life == "ready" and not instance.calls:
            self.rest(instance)

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
            self.drain(instance)

    def _take_away(self, node_name: str) -> None:
        for instance in self._on(node_name):
            self.end(instance)
            self._changed(self._slots[instance.function])

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._lived)
        return task

    def _lived(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (failure := task.exception()) is None:
            return
        self._failures.append(failure)
        for slots in self._slots.values():
            while (waiter := slots.next_waiting()) is not None:
                waiter.set_exception(failure)


def _now() -> float:
    return asyncio.get_running_loop().time()
