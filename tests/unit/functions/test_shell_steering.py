"""Changes to a running stream over ASGI: they reach its handler once, or are refused."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from functions.context import CallContext
from rlhfless.errors import UserError
from rlhfless.frames import encode_request
from rlhfless.messages import (
    Frame,
    Problem,
    Progress,
    Released,
    RolloutDone,
    Steered,
    SteerRequest,
)
from tests.support.shell import (
    ROLLOUT,
    Client,
    Echo,
    Gate,
    Service,
    call_info,
    counting,
    in_loop,
    rollout,
    until,
)

STEER = "/v1/rollout/steer"
CALL = "0/rollout/0"


def steer(store: Path | str, number: int, target: str = CALL, release: int = 0) -> bytes:
    return encode_request(
        SteerRequest(
            call=call_info(store, f"{target}/{number}"),
            target=target,
            number=number,
            release=[release],
        )
    )


class Steerable:
    """A handler that answers every change with a frame, until it is let go or told to stop."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.taken: list[int] = []
        self.error: Exception | None = None

    def handle(self, request: Any, context: CallContext) -> Iterator[Frame]:
        context.inbox.open()
        yield Progress(running=1, waiting=0, kv_tokens=0, iterations=0)
        while context.stop_reason is None and not self.open.is_set():
            changes = context.take()
            yield from self._answer(changes)
            if not changes:
                self.open.wait(0.0005)
        if self.error is not None:
            raise self.error
        while changes := context.close_inbox():
            yield from self._answer(changes)
        yield RolloutDone()

    def _answer(self, changes: list[SteerRequest]) -> Iterator[Frame]:
        for change in changes:
            self.taken.append(change.number)
            yield Released(samples=change.release)


class World:
    def __init__(self, store: Path, **options: Any) -> None:
        self.handler = Steerable()
        self.service = Service(Echo(rollout=self.handler.handle), **options)
        self._store = store

    async def begin(self) -> Client:
        self.handler.open.clear()
        client = self.service.post(ROLLOUT, rollout(self._store, CALL))
        await client.until(Progress)
        return client

    async def steer(self, number: int, target: str = CALL, store: Path | None = None) -> bool:
        answer = await self.service.ask(STEER, steer(store or self._store, number, target))
        (frame,) = answer.frames
        assert isinstance(frame, Steered)
        return frame.accepted


@in_loop
async def test_changes_reach_a_stream_on_a_full_instance(tmp_path: Path) -> None:
    world = World(tmp_path, concurrency=1)
    client = await world.begin()
    assert [await world.steer(n) for n in (1, 2, 2, 1, 3)] == [True] * 5
    world.handler.open.set()
    await client.task
    assert world.handler.taken == [1, 2, 3]
    assert sum(isinstance(frame, Released) for frame in client.frames) == 3


@in_loop
async def test_what_is_no_next_change_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert not await world.steer(1)
    client = await world.begin()
    assert not await world.steer(2)
    assert not await world.steer(0)
    assert not await world.steer(1, "another")
    assert not await world.steer(1, store=tmp_path / "another")
    assert await world.steer(1)
    world.handler.open.set()
    await client.task
    assert world.handler.taken == [1]


@in_loop
async def test_a_call_that_ended_takes_nothing_but_knows_what_it_took(tmp_path: Path) -> None:
    world = World(tmp_path)
    client = await world.begin()
    assert await world.steer(1)
    world.handler.open.set()
    await client.task
    assert await world.steer(1)
    assert not await world.steer(2)
    again = await world.begin()  # a new attempt counts anew
    assert await world.steer(1)
    world.handler.open.set()
    await again.task
    assert world.handler.taken == [1, 1]


@in_loop
async def test_a_handler_that_takes_no_changes_is_sent_none(tmp_path: Path) -> None:
    gate = Gate()
    service = Service(Echo(rollout=gate.handle))
    client = service.post(ROLLOUT, rollout(tmp_path, CALL))
    await client.until(Progress)
    answer = await service.ask(STEER, steer(tmp_path, 1))
    assert answer.frames == [Steered(accepted=False)]
    gate.open.set()
    await client.task


@in_loop
async def test_a_draining_instance_takes_no_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    client = await world.begin()
    assert await world.steer(1)
    world.service.shell.draining = True
    world.service.shell._steering.close()
    assert not await world.steer(2)
    assert await world.steer(1)
    assert await world.service.shell.drain(10)
    await client.task
    assert world.handler.taken == [1]


@in_loop
async def test_a_stream_that_nobody_reads_takes_no_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    client = await world.begin()
    client.leave()
    await client.task
    assert not await world.steer(1)
    assert await world.service.shell.drain(10)
    assert world.handler.taken == []


@in_loop
async def test_a_call_that_failed_takes_no_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    client = await world.begin()
    world.handler.error = UserError("that cannot be")
    world.handler.open.set()
    await client.task
    assert isinstance(client.frames[-1], Problem)
    assert not await world.steer(1)


@in_loop
async def test_only_who_bears_the_token_can_steer(tmp_path: Path) -> None:
    world = World(tmp_path)
    client = await world.begin()
    refused = await world.service.ask(STEER, steer(tmp_path, 1), "guess")
    assert refused.status == 401
    garbled = await world.service.ask(STEER, steer(tmp_path, 1)[:-1])
    assert garbled.status == 422
    world.handler.open.set()
    await client.task
    assert world.handler.taken == []


@in_loop
async def test_what_does_not_roll_out_cannot_be_steered(tmp_path: Path) -> None:
    answer = await Service(Echo(reward=counting()[1])).ask(STEER, steer(tmp_path, 1))
    assert answer.status == 404


@in_loop
@pytest.mark.parametrize("seed", range(5))
async def test_whatever_is_accepted_is_taken(tmp_path: Path, seed: int) -> None:
    """Streams that end at random moments while changes pour in."""
    rng = random.Random(seed)
    world = World(tmp_path)

    async def pour() -> int:
        number = 0
        while await world.steer(number + 1):
            number += 1
        return number

    for _ in range(10):
        world.handler.taken.clear()
        client = await world.begin()
        pouring = asyncio.create_task(pour())
        wanted = rng.randrange(1, 20)
        await until(lambda wanted=wanted: len(world.handler.taken) >= wanted)
        world.handler.open.set()
        await client.task
        assert world.handler.taken == list(range(1, await pouring + 1))
        assert isinstance(client.frames[-1], RolloutDone)
