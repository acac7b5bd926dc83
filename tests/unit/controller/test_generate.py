"""A rollout whose prompts are computed ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller import planning
from controller.collector import Collector, FinishedSample
from controller.dataset import Position
from controller.generate import generate
from controller.learning import PolicyState
from controller.requests import LOOK_S, RolloutTask
from controller.rollout_stats import RolloutStats
from prefix_cache.plan import PrefillCall, PrefixPlan
from rlhfless.errors import CapacityError
from rlhfless.messages import PrefillDone, PrefillRequest
from simulator.clock import run
from tests.support.world import World, world


def two_calls(num_prompts: int) -> PrefixPlan:
    calls = tuple(PrefillCall((index,), ((1,),)) for index in range(2))
    return PrefixPlan(
        cuts=((1,),) * num_prompts,
        prefill=calls,
        load=True,
        publish=False,
        tokens_computed=0,
        tokens_loaded=0,
        tokens_saved=0,
        stored_bytes=0,
        seconds=0.0,
        wall_s=0.0,
        reason="",
        alternatives=(),
    )


@pytest.mark.parametrize(("frames_per_s", "flush_s"), [(1e6, 3e-6), (15, 0.2), (1e-6, LOOK_S)])
def test_the_more_actors_the_rarer_each_tells_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames_per_s: float, flush_s: float
) -> None:
    """Three actors; no more rarely than they are looked at."""
    monkeypatch.setattr("controller.generate.FRAMES_PER_S", frames_per_s)

    async def asked(w: World) -> list[float]:
        job = w.job()
        found: list[float] = []
        stream = job.dispatcher.stream

        def noted(request: Any) -> Any:
            found.append(request.flush_s)
            return stream(request)

        async def on_finished(_: list[FinishedSample]) -> None:
            pass

        monkeypatch.setattr(job.dispatcher, "stream", noted)
        step = planning.plan_step(job, 0, Position())
        plan = planning.plan_rollout(job.spec, step.samples, step.prompts, PolicyState(), 0)
        assert len(plan.assignment) == 3
        collector = Collector(step.samples)
        await generate(job, RolloutTask(0, 0), collector, plan, step.prompts, on_finished)
        return found

    assert run(asked(world(tmp_path))) == [pytest.approx(flush_s)] * 3


def test_prompts_that_cannot_be_prefilled_ahead_cost_time_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def rollout(w: World) -> tuple[RolloutStats, Collector]:
        job = w.job()
        call = job.dispatcher.call

        async def prefilled(request: Any, result: Any) -> Any:
            if not isinstance(request, PrefillRequest):
                return await call(request, result)
            if "prefill-0" in request.call.id:
                raise CapacityError("no room for keys and values")
            return PrefillDone(tokens_computed=5)

        async def on_finished(_: list[FinishedSample]) -> None:
            pass

        monkeypatch.setattr(job.dispatcher, "call", prefilled)
        step = planning.plan_step(job, 0, Position())
        plan = planning.plan_rollout(job.spec, step.samples, step.prompts, PolicyState(), 0)
        plan = replace(plan, prefixes=two_calls(len(step.prompts)))
        collector = Collector(step.samples)
        task = RolloutTask(step=0, version=0)
        return await generate(job, task, collector, plan, step.prompts, on_finished), collector

    stats, collector = run(rollout(world(tmp_path)))
    assert not collector.all_remaining()
    assert len(stats.prefills) == 1
    assert "no room for keys and values" in caplog.text
