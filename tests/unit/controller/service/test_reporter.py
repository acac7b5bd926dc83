"""What a running job tells: its events, how far it is, its log."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import fakeredis
import pytest

from controller.evaluation import Evaluation
from controller.fencing import Fence, fence_key
from controller.job import Event
from controller.job_store import JobStore
from controller.journal import StepRecord
from controller.service.events import Events
from controller.service.reporter import Reporter, announce, read_reached

FENCE = Fence(1, "here")
METRICS = {"reward/mean": 0.5, "response_length/mean": 9.0, "time/step_s": 2.0}
STEP = StepRecord(step=3, version=4, metrics=METRICS, position={})
PLAN = Event("plan", "", {"total_steps": 9})
FOUND = Evaluation(version=4, samples=[], accuracy=0.25, reward_mean=0.5, length_mean=8.0)


def with_reporter(
    test: Callable[[Reporter, fakeredis.FakeAsyncRedis], Awaitable[None]],
) -> None:
    async def main() -> None:
        redis = fakeredis.FakeAsyncRedis()
        await redis.set(fence_key("job"), str(FENCE))
        journal = JobStore(redis, "job", FENCE, announce)
        await test(Reporter("job", Events(redis), journal, FENCE), redis)
        await redis.aclose()

    asyncio.run(main())


def test_a_job_that_goes_on_is_never_seen_at_its_beginning() -> None:
    async def test(reporter: Reporter, redis: fakeredis.FakeAsyncRedis) -> None:
        running = asyncio.create_task(reporter.run())
        reporter.observe(PLAN)
        await asyncio.sleep(0.02)
        assert (await read_reached(redis, ["job"]))["job"].total_steps is None
        for step in range(3):
            reporter.observe(Event("restored", f"step {step + 1}", {"metrics": METRICS}))
        await asyncio.sleep(0.02)
        reached = (await read_reached(redis, ["job"]))["job"]
        assert (reached.steps_done, reached.total_steps, reached.reward) == (3, 9, 0.5)
        assert not reporter.made_steps
        running.cancel()

    with_reporter(test)


def test_an_evaluation_is_told_once_whoever_repeats_it() -> None:
    async def test(reporter: Reporter, redis: fakeredis.FakeAsyncRedis) -> None:
        for _ in range(2):
            reporter.observe(Event("evaluated", "eval_3", {"step": 3, "evaluation": FOUND}))
            await reporter.flush()
        (told,) = (await Events(redis).read("job")).data
        assert told.message == "25.0 % right on the held-out set after 3 steps"

    with_reporter(test)


def test_the_log_speaks_to_people(caplog: pytest.LogCaptureFixture) -> None:
    async def test(reporter: Reporter, _: fakeredis.FakeAsyncRedis) -> None:
        reporter.observe(PLAN)
        reporter.observe(Event("restored", "step 3", {"metrics": METRICS}))
        reporter.observe(Event("rollout", "step 4", {"actors": 2}))
        reporter.observe(Event("step", "step 4", {"metrics": METRICS, "record": STEP}))
        reporter.observe(Event("evaluated", "eval_4", {"step": 4, "evaluation": FOUND}))

    with caplog.at_level(logging.INFO, "controller.service.reporter"):
        with_reporter(test)
    assert caplog.messages == [
        "the job has 9 steps",
        "rollout: step 4",
        "step 4: reward 0.500, 9.0 tokens, 2.00 s",
        "25.0 % right on the held-out set after 4 steps",
    ]
