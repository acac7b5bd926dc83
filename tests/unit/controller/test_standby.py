"""Instances are let go when they would only wait, and are back in time, as often as is needed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from controller.planning import RolloutPlan
from controller.standby import Standby
from rlhfless.messages import FunctionName
from scaling.actors import ActorDecision
from scaling.cost_model import CostModel
from scaling.plans import ActorPlan
from scaling.release import SAFETY

COLD_S = 2.0
TRAIN_S = 1.0


def cost(*measured: str) -> CostModel:
    base = CostModel(cold_starts={"rollout": COLD_S}, measured=frozenset(measured))
    return replace(base, coefficients={**base.coefficients, "training": (TRAIN_S, 0.0)})


class World:
    """A platform whose instances start at once, and a step of ``actors`` actors on it."""

    def __init__(
        self, actors: int, warm: int, *, after: bool = True, measured: str = "training"
    ) -> None:
        self.warm = warm
        self.asked: list[int] = []
        spec = SimpleNamespace(
            scheduling=SimpleNamespace(early_release=True),
            objective=SimpleNamespace(time_weight=0.5),
        )
        dispatcher = SimpleNamespace(warm=lambda _: self.warm, platform=self)
        ids = tuple((str(n),) for n in range(actors))
        chosen = ActorPlan(ids, 1.0, 1.0, 1.0)
        plan = RolloutPlan(
            ActorDecision(chosen, (chosen,), ""), {}, cost(measured), reference=(10.0, 100.0)
        )
        job: Any = SimpleNamespace(spec=spec, dispatcher=dispatcher)
        self.standby = Standby(job, plan, after=after)

    async def scale(self, function: FunctionName, count: int) -> None:
        assert function == "rollout"
        self.asked.append(count)
        self.warm = count

    def look(self, running: int, remaining_s: float) -> None:
        asyncio.run(self.standby.rollout_thins(running, lambda: remaining_s, 0))


def test_what_would_only_wait_is_let_go_and_is_back_in_time() -> None:
    world = World(actors=4, warm=4)
    world.look(4, 9.0)
    assert world.asked == []
    world.look(2, 8.0)
    world.look(1, 6.0)
    assert world.asked == [2, 1]
    assert world.standby.released == 3
    enough_s = SAFETY * COLD_S - TRAIN_S
    world.look(1, enough_s + 0.1)
    assert world.asked == [2, 1]
    world.look(1, enough_s - 0.1)
    assert world.asked == [2, 1, 4]
    world.look(1, 9.0)  # a forecast may change its mind; what was started stays
    assert world.asked == [2, 1, 4]


def test_instances_without_an_actor_are_let_go_whenever_they_appear() -> None:
    world = World(actors=3, warm=10)
    world.look(3, 8.0)
    assert world.asked == [3]


def test_near_the_end_everything_stays() -> None:
    world = World(actors=4, warm=4)
    world.look(1, SAFETY * COLD_S - TRAIN_S - 0.1)
    assert world.asked == []


def test_after_the_last_step_nothing_comes_back() -> None:
    world = World(actors=4, warm=4, after=False)
    world.look(1, 5.0)
    world.look(1, 0.1)
    assert world.asked == [1]


def test_nothing_is_let_go_before_the_time_of_training_is_known() -> None:
    world = World(actors=4, warm=4, measured="decode")
    world.look(1, 50.0)
    assert world.asked == []
