"""The scripted platform steers as real ones do, so that what is tested on it holds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rlhfless.messages import (
    AnyFrame,
    CallInfo,
    Finished,
    ModelRef,
    Released,
    RolloutDone,
    RolloutRequest,
    SampleTask,
    SamplingParams,
    SteerRequest,
    Tokens,
)
from simulator.clock import run
from tests.support.scripted_platform import ScriptedPlatform
from tests.support.scripted_rollout import Faults, sample_length, sample_token


def task(number: int, tokens: list[int] | None = None) -> SampleTask:
    """Sample ``number``; its length is at least 6 tokens."""
    seeds = (s for s in range(10**6) if 6 <= sample_length(task_of(s)) < 40)
    seed = next(s for n, s in enumerate(seeds) if n == number)
    return SampleTask(id=str(number), prompt=0, seed=seed, max_tokens=64, tokens=tokens or [])


def task_of(seed: int) -> SampleTask:
    return SampleTask(id="", prompt=0, seed=seed, max_tokens=64)


TASKS = [task(n) for n in range(8)]


def info(name: str) -> CallInfo:
    return CallInfo(id=name, job="job", step=0, deadline_s=60, store="memory://")


def request(name: str, tasks: list[SampleTask], **others: Any) -> RolloutRequest:
    return RolloutRequest(
        call=info(name),
        model=ModelRef(path="m", job="job", version=0),
        sampling=SamplingParams(),
        prompts=[[1, 2]],
        samples=tasks,
        **others,
    )


def change(target: str, number: int, **others: Any) -> SteerRequest:
    return SteerRequest(call=info(f"{target}/{number}"), target=target, number=number, **others)


class Call:
    """A stream and what it gave, by the index in the call."""

    def __init__(self, platform: ScriptedPlatform, request: RolloutRequest) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.finished: set[int] = set()
        self.released: set[int] = set()
        self.done: RolloutDone | None = None
        self._heard = asyncio.Event()
        self.task = asyncio.create_task(self._read(platform, request))

    async def _read(self, platform: ScriptedPlatform, request: RolloutRequest) -> None:
        async for frame in platform.invoke(request):
            self._take(frame)
            self._heard.set()

    def _take(self, frame: AnyFrame) -> None:
        match frame:
            case Tokens():
                for index, token in zip(frame.samples, frame.tokens, strict=True):
                    self.tokens.setdefault(index, []).append(token)
            case Finished():
                self.finished.update(frame.samples)
            case Released():
                assert not self.released.intersection(frame.samples)
                self.released.update(frame.samples)
            case RolloutDone():
                self.done = frame

    async def until(self, condition: Callable[[Call], bool]) -> None:
        while not condition(self):
            self._heard.clear()
            await self._heard.wait()


def whole(sample: SampleTask) -> list[int]:
    return [sample_token(sample, n) for n in range(sample_length(sample))]


def test_samples_move_from_one_call_to_another() -> None:
    async def main() -> None:
        platform = ScriptedPlatform()
        one = Call(platform, request("one", TASKS[:4]))
        other = Call(platform, request("other", TASKS[4:6]))
        await one.until(lambda call: len(call.tokens.get(0, [])) == 3)
        assert await platform.steer(change("one", 1, release=[0, 2]))
        await one.until(lambda call: len(call.released) == 2)
        moved = [msgspec.structs.replace(TASKS[n], tokens=list(one.tokens[n])) for n in (0, 2)]
        assert await platform.steer(change("other", 1, samples=moved))
        await asyncio.gather(one.task, other.task)
        assert one.finished == {1, 3}
        assert other.finished == {0, 1, 2, 3}
        for place, n in ((2, 0), (3, 2)):
            assert one.tokens[n] + other.tokens[place] == whole(TASKS[n])
        assert sum(platform.generated.values()) == sum(map(sample_length, TASKS[:6]))
        for call in (one, other):
            assert call.done is not None
            assert call.done.unfinished == []

    run(main())


def test_what_waits_can_be_released_and_what_is_whole_ends_at_once() -> None:
    async def main() -> None:
        platform = ScriptedPlatform()
        call = Call(platform, request("one", TASKS[:4], max_batch=2))
        await call.until(lambda call: bool(call.tokens))
        complete = task(4, whole(TASKS[4]))
        assert await platform.steer(change("one", 1, samples=[complete], release=[3]))
        await call.task
        assert call.released == {3}
        assert call.finished == {0, 1, 2, 4}
        assert 4 not in call.tokens

    run(main())


def test_an_ended_call_cannot_be_steered_and_a_repeat_changes_nothing() -> None:
    async def main() -> None:
        platform = ScriptedPlatform()
        assert not await platform.steer(change("one", 1))
        call = Call(platform, request("one", TASKS[:2]))
        await call.until(lambda call: bool(call.tokens))
        assert not await platform.steer(change("one", 2))
        for _ in range(3):
            assert await platform.steer(change("one", 1, samples=[TASKS[2]]))
        await call.task
        assert call.finished == {0, 1, 2}
        assert not await platform.steer(change("one", 2))

    run(main())


@pytest.mark.parametrize("seed", range(10))
def test_a_steer_is_taken_or_refused_up_to_the_last_moment(seed: int) -> None:
    async def main() -> None:
        platform = ScriptedPlatform()
        rng = random.Random(seed)
        call = Call(platform, request("one", [TASKS[0]]))
        accepted = 0
        while await platform.steer(change("one", accepted + 1, samples=[TASKS[1]])):
            accepted += 1
            await asyncio.sleep(rng.uniform(0, 1.5 * 0.01 * sample_length(TASKS[1])))
        await call.task
        assert call.finished == set(range(accepted + 1))

    run(main())


def test_faults_of_steering() -> None:
    async def main() -> None:
        for faults, taken in (({"unsteered": 1.0}, 0), ({"unheard": 1.0}, 1)):
            platform = ScriptedPlatform(Faults(random.Random(0), **faults))
            call = Call(platform, request("one", TASKS[:1]))
            await call.until(lambda call: bool(call.tokens))
            assert not await platform.steer(change("one", 1, samples=[TASKS[1]]))
            await call.task
            assert len(call.finished) == 1 + taken

    run(main())
