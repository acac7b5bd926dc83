"""The shell when clients leave and when its instance is told to go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from functions.context import CallContext
from rlhfless.messages import DRAIN_PATH, Drain, Frame, Progress, RolloutDone
from tests.support.shell import (
    REWARD,
    ROLLOUT,
    Echo,
    Gate,
    Service,
    counting,
    in_loop,
    reward,
    rollout,
    until,
)


@in_loop
async def test_a_client_that_leaves_stops_its_call(tmp_path: Path) -> None:
    for path, body in ((ROLLOUT, rollout(tmp_path)), (REWARD, reward(tmp_path))):
        gate = Gate()
        service = Service(Echo(rollout=gate.handle, reward=gate.handle))
        client = service.post(path, body)
        await until(gate.entered.is_set)
        client.leave()
        await client.task
        assert await service.shell.drain(10)
        assert gate.ended_for == "abort"


@in_loop
async def test_a_client_that_leaves_frees_a_handler_waiting_for_room(tmp_path: Path) -> None:
    ended = threading.Event()

    def endless(request: Any, context: CallContext) -> Iterator[Frame]:
        try:
            while True:
                yield Progress(running=0, waiting=0, kv_tokens=0, iterations=0)
        finally:
            ended.set()

    service = Service(Echo(rollout=endless))
    client = service.post(ROLLOUT, rollout(tmp_path))
    await client.until(Progress)
    client.leave()
    await client.task
    assert await service.shell.drain(10)
    assert ended.is_set()


@in_loop
async def test_drain_tells_streams_and_admits_nothing(tmp_path: Path) -> None:
    gate = Gate()
    service = Service(Echo(rollout=gate.handle, reward=counting()[1]))
    client = service.post(ROLLOUT, rollout(tmp_path))
    await client.until(Progress)
    assert (await service.get("/readyz")).status == 200
    drained = asyncio.create_task(service.shell.drain(10))
    await client.task
    assert await drained
    assert [type(f) for f in client.frames] == [Progress, Drain, RolloutDone]
    assert client.frames[-1] == RolloutDone(unfinished=[0])
    refused = await service.ask(REWARD, reward(tmp_path))
    assert (refused.status, refused.problem["category"]) == (503, "transient")
    assert (await service.get("/readyz")).status == 503
    assert (await service.get("/healthz")).status == 200


@in_loop
async def test_drain_ends_with_its_grace(tmp_path: Path) -> None:
    release = threading.Event()

    def deaf(request: Any, context: CallContext) -> Iterator[Frame]:
        yield Progress(running=0, waiting=0, kv_tokens=0, iterations=0)
        release.wait()
        yield RolloutDone()

    service = Service(Echo(rollout=deaf))
    client = service.post(ROLLOUT, rollout(tmp_path))
    await client.until(Progress)
    assert not await service.shell.drain(0.01)
    release.set()
    await client.task


def test_close_lets_the_function_go() -> None:
    function = Echo()
    Service(function).shell.close()
    assert function.closed


@in_loop
async def test_who_is_told_to_go_hands_over_but_stays(tmp_path: Path) -> None:
    """By a caller that knows of its end before it does; SIGTERM comes later, or never."""
    gate = Gate()
    service = Service(Echo(rollout=gate.handle))
    client = service.post(ROLLOUT, rollout(tmp_path))
    await until(gate.entered.is_set)
    stranger = service.post(DRAIN_PATH, b"", token="another")
    await stranger.task
    assert (stranger.status, service.shell.draining) == (401, False)
    told = service.post(DRAIN_PATH, b"")
    await told.task
    assert told.status == 202
    await client.task
    assert gate.ended_for == "drain"
    assert sum(isinstance(frame, Drain) for frame in client.frames) == 1
    assert await service.shell.drain(10)
    assert sum(isinstance(frame, Drain) for frame in client.frames) == 1
