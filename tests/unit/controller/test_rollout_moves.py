"""Samples moved at random between actors that stream, while anything may be lost: they all end,
once, as the samples they would have been."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from controller.actor import Actor
from controller.collector import Collector, FinishedSample, Sample
from controller.requests import RolloutTask
from controller.rollout import Rollout
from rlhfless.errors import TransientError
from rlhfless.messages import SteerRequest
from simulator.clock import run
from tests.support.world import World, world

NUM_ACTORS = 4


def samples() -> list[Sample]:
    return [Sample(f"s{n}", n // 4, (7, n // 4), seed=n, max_tokens=64) for n in range(24)]


async def generate(
    w: World, restless: random.Random | None
) -> tuple[dict[str, FinishedSample], Rollout]:
    """All samples over ``NUM_ACTORS`` actors; with ``restless`` some move every few iterations."""
    told: Counter[str] = Counter()

    async def on_finished(finished: list[FinishedSample]) -> None:
        told.update(sample.id for sample in finished)

    async def watch(rollout: Rollout) -> None:
        assert restless is not None
        if len(rollout.running) < 2:
            return
        source, target = restless.sample(rollout.running, 2)
        left = [i for i in source.left if i not in rollout.moving]
        ids = restless.sample(left, restless.randint(0, len(left)))
        if ids:
            await rollout.move(source, target, ids)

    collector = Collector(samples())
    ids = list(collector.samples)
    rollout = Rollout(w.job(), RolloutTask(step=0, version=0), collector, on_finished)
    assignment = [ids[n::NUM_ACTORS] for n in range(NUM_ACTORS)]
    await rollout.run(assignment, None if restless is None else watch, every_s=0.025)
    assert set(told) == set(ids)
    assert set(told.values()) == {1}
    return {sample.id: sample for sample in collector.done()}, rollout


def test_moved_samples_are_what_they_would_have_been(tmp_path: Path) -> None:
    expected, _ = run(generate(world(tmp_path / "a"), None))
    moves = 0
    for seed in range(20):
        w = world(tmp_path / str(seed))
        found, rollout = run(generate(w, random.Random(seed)))
        assert found == expected
        assert w.platform.generated == {i: len(s.tokens) for i, s in expected.items()}
        moves += rollout.stats.moved
    assert moves > 50


@pytest.mark.parametrize("seed", range(40))
def test_moves_survive_losses(tmp_path: Path, seed: int) -> None:
    expected, _ = run(generate(world(tmp_path / "a"), None))
    w = world(tmp_path / "b", seed=seed, lost=0.02, drained=0.02, refused=0.1, repeated=0.1)
    found, _ = run(generate(w, random.Random(seed)))
    assert found == expected


@pytest.mark.parametrize("seed", range(40))
def test_moves_survive_steers_that_get_lost(tmp_path: Path, seed: int) -> None:
    expected, _ = run(generate(world(tmp_path / "a"), None))
    w = world(tmp_path / "b", seed=seed, lost=0.01, unsteered=0.15, unheard=0.15)
    found, _ = run(generate(w, random.Random(seed)))
    assert found == expected


def test_a_platform_that_cannot_steer_loses_nothing(tmp_path: Path) -> None:
    expected, _ = run(generate(world(tmp_path / "a"), None))
    w = world(tmp_path / "b", unsteered=1.0)
    found, rollout = run(generate(w, random.Random(0)))
    assert found == expected
    assert rollout.stats.moved == 0


def test_moves_that_come_too_late_are_left_out(tmp_path: Path) -> None:
    """Samples chosen at one look are asked for at the next: some have ended by then, with the call
    that had them."""
    expected, _ = run(generate(world(tmp_path / "a"), None))

    async def late(w: World, chance: random.Random) -> list[FinishedSample]:
        chosen: list[tuple[Actor, Actor, list[str]]] = []

        async def watch(rollout: Rollout) -> None:
            for source, target, ids in chosen:
                await rollout.move(source, target, ids)
            chosen.clear()
            if len(rollout.running) > 1:
                source, target = chance.sample(rollout.running, 2)
                chosen.append((source, target, source.left[:3]))

        async def on_finished(_: list[FinishedSample]) -> None:
            pass

        collector = Collector(samples())
        ids = list(collector.samples)
        rollout = Rollout(w.job(), RolloutTask(step=0, version=0), collector, on_finished)
        await rollout.run([ids[n::NUM_ACTORS] for n in range(NUM_ACTORS)], watch, every_s=0.025)
        return collector.done()

    for seed in range(40):
        w = world(tmp_path / str(seed), seed=seed, drained=0.05)
        found = run(late(w, random.Random(seed)))
        assert {sample.id: sample for sample in found} == expected


def test_samples_that_nobody_takes_end_the_rollout(tmp_path: Path) -> None:
    """No other call could make up for it; what went wrong is told with its cause."""

    async def full(_: list[FinishedSample]) -> None:
        raise TransientError("the job store cannot be reached") from ConnectionError("refused")

    async def refused(w: World) -> Rollout:
        collector = Collector(samples())
        rollout = Rollout(w.job(), RolloutTask(step=0, version=0), collector, full)
        with pytest.raises(ExceptionGroup) as raised:
            await rollout.run([list(collector.samples)], None, every_s=0.025)
        (error,) = raised.value.exceptions
        assert isinstance(error, TransientError)
        assert isinstance(error.__cause__, ConnectionError)
        return rollout

    assert run(refused(world(tmp_path))).stats.lost_calls == 0


def test_nothing_is_sent_to_a_call_that_is_over(tmp_path: Path) -> None:
    """A change may have to wait for the one before it; by then its call may have ended, and the
    actor's next call has what it was about."""
    late: list[str] = []

    async def moved(w: World, chance: random.Random) -> None:
        steer = w.platform.steer

        async def noted(request: SteerRequest) -> bool:
            if request.target not in w.platform._running:
                late.append(request.call.id)
            answer = await steer(request)
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            return answer

        w.platform.steer = noted  # type: ignore[method-assign]
        await generate(w, chance)

    for seed in range(60):
        run(moved(world(tmp_path / str(seed), seed=seed, drained=0.1), random.Random(seed)))
    assert late == []
