"""What runs on Ray, and the books of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.ledger import Ledger
from controller.platforms.ray_replicas import Replicas
from rlhfless.ray_apps import RayReplica


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.ledger = Ledger()
        self.replicas = Replicas(self.ledger, lambda: self.now_s)

    def tell(self, *replicas: RayReplica, after_s: float = 1.0) -> None:
        self.now_s += after_s
        self.replicas.update({"rollout": replicas})

    def states(self) -> dict[str, str]:
        return {instance.id: instance.state for instance in self.replicas.instances()}


def test_a_replica_is_held_from_its_node_to_its_end() -> None:
    world = World()
    world.tell(RayReplica(id="a", phase="waiting"))
    assert world.states() == {}
    assert world.replicas.num_waiting == 1
    world.tell(RayReplica(id="a", phase="cold"))
    world.tell(RayReplica(id="a", phase="ready"), after_s=3)
    name = world.replicas.began("rollout", "a@10.0.0.1:4000")
    assert world.states() == {name: "busy"}
    world.now_s += 5
    world.replicas.ended(name)
    world.tell(RayReplica(id="a", phase="stopping"), after_s=2)
    assert world.states() == {name: "stopping"}
    world.tell(after_s=1)
    usage = world.ledger.usage(world.now_s)["rollout"]
    assert (usage.cold_s, usage.busy_s, usage.idle_s) == (3, 5, 3)


def test_an_answer_may_name_a_replica_first() -> None:
    world = World()
    name = world.replicas.began("rollout", "a@[::1]:4000")
    assert world.replicas.get(name).address == "[::1]:4000"  # type: ignore[union-attr]
    world.tell()  # asked before it was there
    assert world.states() == {name: "busy"}
    world.tell(RayReplica(id="a", phase="ready"))
    world.tell()
    assert world.states() == {}


def test_one_that_nobody_tells_of_is_not_believed_for_ever() -> None:
    world = World()
    world.replicas.began("rollout", "a@x:1")
    world.tell(after_s=10)
    assert world.states() == {}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("wcrls-+")), max_size=30))
def test_every_second_is_in_one_book(events: list[tuple[str, str]]) -> None:
    """However states and calls mix, held seconds are the sum of what they were held for."""
    phases = {"w": "waiting", "c": "cold", "r": "ready", "l": "leaving", "s": "stopping"}
    world, there, calls = World(), {}, []
    for name, event in events:
        if event == "+":
            calls.append(world.replicas.began("rollout", f"{name}@x:1"))
        elif event == "-":
            there.pop(name, None)
            if calls:
                world.replicas.ended(calls.pop())
        else:
            there[name] = phases[event]
        world.tell(*(RayReplica(id=n, phase=p) for n, p in there.items()))  # type: ignore[arg-type]
    world.now_s += 1
    world.replicas.close()
    assert world.states() == {}
    held = world.ledger.usage(world.now_s).get("rollout")
    spans = sum(span.end_s - span.start_s for span in world.ledger.spans)
    assert (held.held_s if held else 0.0) == spans
