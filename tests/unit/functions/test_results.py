"""First results: repeats of a call, here and elsewhere, in turn and at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from functions.context import CallContext
from rlhfless.errors import TransientError
from rlhfless.messages import Frame, RewardDone, RolloutDone
from rlhfless.objects import ObjectStore
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
async def test_a_repeat_gets_the_first_result(tmp_path: Path) -> None:
    runs, handle = counting()
    service = Service(Echo(reward=handle))
    first = await service.ask(REWARD, reward(tmp_path, "0/reward/0"))
    repeat = await service.ask(REWARD, reward(tmp_path, "0/reward/0"))
    other = await service.ask(REWARD, reward(tmp_path, "0/reward/1"))
    assert first.frames == repeat.frames == [RewardDone(scores=[], totals=[1.0])]
    assert other.frames == [RewardDone(scores=[], totals=[2.0])]
    assert runs == ["0/reward/0", "0/reward/1"]
    assert ObjectStore(str(tmp_path)).list("results") == [
        "results/job/0/reward/0",
        "results/job/0/reward/1",
    ]


@in_loop
async def test_a_repeat_on_another_instance_gets_the_first_result(tmp_path: Path) -> None:
    runs, handle = counting()
    first = await Service(Echo(reward=handle)).ask(REWARD, reward(tmp_path))
    repeat = await Service(Echo(reward=handle)).ask(REWARD, reward(tmp_path))
    assert first.frames == repeat.frames
    assert len(runs) == 1


@in_loop
async def test_the_same_id_in_another_store_is_another_call(tmp_path: Path) -> None:
    runs, handle = counting()
    service = Service(Echo(reward=handle))
    await service.ask(REWARD, reward(tmp_path / "a"))
    await service.ask(REWARD, reward(tmp_path / "b"))
    assert len(runs) == 2


@in_loop
async def test_a_repeat_joins_the_call_in_flight_and_outlives_its_first_caller(
    tmp_path: Path,
) -> None:
    gate = Gate()
    service = Service(Echo(reward=gate.handle))
    first = service.post(REWARD, reward(tmp_path))
    await until(gate.entered.is_set)
    second = service.post(REWARD, reward(tmp_path))  # no room is needed to join
    await until(lambda: service.shell._num_answers == 2)
    first.leave()
    await first.task
    gate.open.set()
    await second.task
    assert gate.ended_for is None
    assert second.frames == [RewardDone(scores=[], totals=[1.0])]


@in_loop
async def test_a_failed_call_is_tried_again(tmp_path: Path) -> None:
    _, handle = counting()
    fails = iter([True, False])

    def flaky(request: Any, context: CallContext) -> Iterator[Frame]:
        if next(fails):
            raise TransientError("once")
        yield from handle(request, context)

    service = Service(Echo(reward=flaky))
    assert (await service.ask(REWARD, reward(tmp_path))).problem["category"] == "transient"
    assert (await service.ask(REWARD, reward(tmp_path))).frames == [
        RewardDone(scores=[], totals=[1.0])
    ]


@in_loop
async def test_a_rollout_is_not_kept(tmp_path: Path) -> None:
    runs: list[int] = []

    def handle(request: Any, context: CallContext) -> Iterator[Frame]:
        runs.append(1)
        yield RolloutDone()

    service = Service(Echo(rollout=handle))
    await service.ask(ROLLOUT, rollout(tmp_path))
    await service.ask(ROLLOUT, rollout(tmp_path))
    assert len(runs) == 2
    assert ObjectStore(str(tmp_path)).list("results") == []
