"""Calls on real instances of the rollout function, changed while they stream."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from controller.platforms.base import Deployment
from controller.platforms.local import LocalOptions, LocalPlatform
from functions.rollout.transformers_engine import TransformersEngine
from rlhfless.errors import TransientError
from rlhfless.messages import RolloutRequest, SampleTask
from tests.support.processes import platform_of
from tests.support.rollout import make_context, make_prompts, make_request, make_tasks
from tests.support.steering import CallRecord, Responses, assert_same, continued, fresh

pytestmark = pytest.mark.slow

OPTIONS = LocalOptions(apps={"rollout": "tests.apps.slow_rollout:create"})
TASKS = make_tasks(2, 4, lambda n: 30 + 20 * (n % 4))


@pytest.fixture(scope="module")
def request_of_all(tiny_model_dir: Path) -> RolloutRequest:
    prompts = make_prompts([20, 130])
    return make_request(tiny_model_dir, prompts, TASKS, temperature=0.9, top_p=0.95)


@pytest.fixture(scope="module")
def undisturbed(request_of_all: RolloutRequest) -> Responses:
    engine, context = TransformersEngine(torch.device("cpu")), make_context()
    engine.ensure(request_of_all.model, context.store)
    responses = fresh(TASKS)
    record = CallRecord(request_of_all, responses)
    for frame in engine.run(request_of_all, context):
        record.take(frame)
    return responses


class Actor(CallRecord):
    """A call on a platform. ``released`` gathers what it gave up; ``lost`` tells why it broke."""

    def __init__(
        self, platform: LocalPlatform, request: RolloutRequest, responses: Responses
    ) -> None:
        super().__init__(request, responses)
        self.released: list[str] = []
        self.lost: TransientError | None = None
        self._platform = platform
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for frame in self._platform.invoke(self.request):
                self.released += self.take(frame)
                self._news.set()
        except TransientError as error:
            self.lost = error
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Or until it is over."""
        while not condition() and not self.task.done():
            self._news.clear()
            await self._news.wait()

    async def steer(self, **contents: Any) -> bool:
        change = self.change(**contents)
        number = self.num_changes
        self.expect(change)
        accepted = await self._platform.steer(change)
        if not accepted:
            self.num_changes = number
            self.here -= {task.id for task in change.samples}
        return accepted

    @property
    def pid(self) -> int:
        instance = self._platform._serving["job", self.request.call.id]
        assert instance.process is not None
        return instance.process.pid


class World:
    """Actors of one platform; ``left`` are samples that are not finished."""

    def __init__(self, platform: LocalPlatform, whole: RolloutRequest) -> None:
        self.platform = platform
        self.responses = fresh(whole.samples)
        self.actors: list[Actor] = []
        self._whole = whole
        self._tasks = {task.id: task for task in whole.samples}

    def begin(self, ids: list[str]) -> Actor:
        name = f"0/rollout/{len(self.actors)}"
        request = msgspec.structs.replace(
            self._whole,
            call=msgspec.structs.replace(self._whole.call, id=name),
            samples=self.tasks(ids),
        )
        self.actors.append(Actor(self.platform, request, self.responses))
        return self.actors[-1]

    def tasks(self, ids: list[str]) -> list[SampleTask]:
        return [continued(self._tasks[i], self.responses) for i in ids]

    @property
    def left(self) -> list[str]:
        return [i for i, response in self.responses.items() if response.reason is None]

    async def end(self) -> None:
        """All streams end; what they left undone is finished by one more call."""
        await asyncio.gather(*(actor.task for actor in self.actors))
        for actor in self.actors:
            if actor.lost is None:
                actor.assert_answered()
        if self.left:
            last = self.begin(self.left)
            await last.task
            last.assert_answered()


def on_two_instances(
    tmp_path: Path, whole: RolloutRequest, script: Callable[[World], Coroutine[Any, Any, None]]
) -> Responses:
    async def run() -> Responses:
        deployment = Deployment("rollout", max_instances=2)
        async with platform_of(tmp_path, deployment, settings=OPTIONS) as platform:
            world = World(platform, whole)
            await asyncio.wait_for(script(world), 120)
            return world.responses

    return asyncio.run(run())


HALVES = [[t.id for t in TASKS[::2]], [t.id for t in TASKS[1::2]]]


@pytest.mark.parametrize("seed", range(2))
def test_samples_move_back_and_forth_while_they_stream(
    tmp_path: Path, request_of_all: RolloutRequest, undisturbed: Responses, seed: int
) -> None:
    moves = 0

    async def script(world: World) -> None:
        nonlocal moves
        rng = random.Random(seed)
        actors = [world.begin(ids) for ids in HALVES]
        await asyncio.gather(*(a.until(lambda a=a: a.num_tokens > 0) for a in actors))
        while all(not actor.task.done() for actor in actors):
            giver, taker = rng.sample(actors, 2)
            if not giver.here:
                break
            some = rng.sample(sorted(giver.here), rng.randint(1, min(3, len(giver.here))))
            giver.released.clear()
            if not await giver.steer(release=[giver.index_of(sample) for sample in some]):
                break
            # Those that are no longer there have ended just now.
            await giver.until(lambda giver=giver, some=some: not giver.here.intersection(some))
            if giver.released and not await taker.steer(samples=world.tasks(giver.released)):
                break
            moves += len(giver.released)
            await asyncio.sleep(rng.uniform(0, 0.02))
        await world.end()
        assert all(actor.lost is None for actor in world.actors)

    assert_same(on_two_instances(tmp_path, request_of_all, script), undisturbed)
    assert moves > 5


@pytest.mark.parametrize("victim", ["giver", "taker"])
def test_an_instance_killed_right_after_it_took_a_change_loses_nothing(
    tmp_path: Path,
    request_of_all: RolloutRequest,
    undisturbed: Responses,
    victim: str,
) -> None:
    async def script(world: World) -> None:
        rng = random.Random(victim)
        giver, taker = (world.begin(ids) for ids in HALVES)
        wanted = rng.randint(10, 60)
        await giver.until(lambda: giver.num_tokens > wanted)
        await taker.until(lambda: taker.num_tokens > wanted)
        some = rng.sample(sorted(giver.here), 2)
        assert await giver.steer(release=[giver.index_of(sample) for sample in some])
        if victim == "giver":
            os.kill(giver.pid, signal.SIGKILL)
        else:
            await giver.until(lambda: len(giver.released) == 2)
            assert await taker.steer(samples=world.tasks(giver.released))
            os.kill(taker.pid, signal.SIGKILL)
        dead = {"giver": giver, "taker": taker}[victim]
        await dead.task
        assert dead.lost is not None
        assert "SIGKILL" in dead.lost.detail
        assert not await dead.steer(release=[0])
        await world.end()
        assert len(world.actors) == 3

    assert_same(on_two_instances(tmp_path, request_of_all, script), undisturbed)


def test_a_call_that_ended_or_never_was_cannot_be_steered(
    tmp_path: Path, request_of_all: RolloutRequest, undisturbed: Responses
) -> None:
    async def script(world: World) -> None:
        actor = world.begin(HALVES[0])
        unknown = msgspec.structs.replace(actor.change(release=[0]), target="0/rollout/9")
        assert not await world.platform.steer(unknown)
        await actor.until(lambda: actor.num_tokens > 0)
        assert not await world.platform.steer(unknown)
        skipped = msgspec.structs.replace(actor.change(release=[0]), number=2)
        assert not await world.platform.steer(skipped)
        change = actor.change(samples=world.tasks(["1"]))
        actor.expect(change)
        assert [await world.platform.steer(change) for _ in range(3)] == [True] * 3
        await actor.task
        assert not await actor.steer(release=[0])
        await world.end()

    assert_same(on_two_instances(tmp_path, request_of_all, script), undisturbed)


@pytest.mark.parametrize("pause_s", [0.0, 0.005])
def test_a_drained_instance_hands_back_what_it_was_given(
    tmp_path: Path, request_of_all: RolloutRequest, undisturbed: Responses, pause_s: float
) -> None:
    async def script(world: World) -> None:
        actor = world.begin(HALVES[0])
        await actor.until(lambda: actor.num_tokens > 10)
        (instance,) = world.platform.instances()
        world.platform.preempt(instance.id)
        await asyncio.sleep(pause_s)
        await actor.steer(samples=world.tasks(["1", "3"]), release=[0])
        await actor.task
        assert actor.lost is None
        await world.end()

    assert_same(on_two_instances(tmp_path, request_of_all, script), undisturbed)


def test_an_instance_that_does_not_answer_is_asked_again_and_then_given_up(
    tmp_path: Path,
    request_of_all: RolloutRequest,
    undisturbed: Responses,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controller.platforms.local_instance.STEER_TIMEOUT_S", 0.2)

    async def script(world: World) -> None:
        actor = world.begin(HALVES[0])
        await actor.until(lambda: actor.num_tokens > 10)
        change = actor.change(samples=world.tasks(["1"]))
        pid = actor.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            assert not await world.platform.steer(change)
        finally:
            os.kill(pid, signal.SIGCONT)
        actor.expect(change)  # asked while it slept, it may have taken the change, once
        await actor.task
        assert actor.here <= {"1"}
        actor.here.clear()
        await world.end()

    assert_same(on_two_instances(tmp_path, request_of_all, script), undisturbed)
