"""The fair queue in Redis: turns taken by any replica, on real clocks."""

import asyncio
from collections.abc import Awaitable, Callable

import fakeredis
import pytest

from controller.service.queue import Candidate
from controller.service.shares import QueueState, Shares

LARGE, SMALL = Candidate("large", "a", 4, 8, 0.0), Candidate("small", "b", 2, 2, 1.0)


class World:
    def __init__(self, patience_instance_s: float = 600.0) -> None:
        self.redis = fakeredis.FakeAsyncRedis()
        self.shares = Shares(self.redis, 8, patience_instance_s)
        self.used: dict[str, int] = {}

    async def turn(self, *candidates: Candidate, let_go: tuple[str, ...] = ()) -> QueueState:
        return await self.shares.turn(candidates, {}, self.used, {}, let_go)


def played(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    return lambda: asyncio.run(test(World()))


@played
async def test_a_job_alone_has_all_it_can_use(world: World) -> None:
    state = await world.turn(LARGE)
    assert state.held("large") == state.grants["large"] == 8
    assert await world.shares.read() == state


@played
async def test_why_a_job_waits_is_told(world: World) -> None:
    state = await world.turn(LARGE, Candidate("vast", "b", 9, 9, 0.0))
    assert state.waiting == {"vast": "needs 9 instances, and there are 8"}
    barred = await world.shares.turn([LARGE], {}, {}, {"other": "over its quota"})
    assert barred.waiting == {"other": "over its quota"}


@played
async def test_what_a_job_was_asked_for_is_another_s_once_it_lets_go(world: World) -> None:
    world.used = {"large": 8}
    await world.turn(LARGE)
    waiting = await world.turn(LARGE, SMALL)
    assert waiting.grants["small"] == 2
    assert waiting.held("small") == 0
    world.used = {"large": 6}
    assert (await world.turn(LARGE, SMALL)).held("small") == 2


@played
async def test_a_job_that_is_driven_no_longer_holds_nothing(world: World) -> None:
    world.used = {"large": 8}
    await world.turn(LARGE)
    world.used = {}
    assert (await world.turn(SMALL)).held("large") == 8  # its driver may be another replica
    state = await world.turn(SMALL, let_go=("large",))
    assert (state.held("large"), state.held("small")) == (0, 2)


@pytest.mark.parametrize("patience", [0.0, 1e6])
def test_a_turn_lasts_for_the_patience(patience: float) -> None:
    async def play() -> None:
        world = World(patience)
        wide = Candidate("wide", "b", 8, 8, 1.0)
        running = Candidate("large", "a", 4, 8, 0.0, running=True)
        await world.turn(LARGE)
        await world.turn(running, wide)
        await asyncio.sleep(0.01)  # what is charged is real time
        granted = (await world.turn(running, wide)).grants
        assert set(granted) == ({"large"} if patience else {"wide"})

    asyncio.run(play())
