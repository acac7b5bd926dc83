"""Turns of a driver where no job has what it needs; jobs that run are in tests/integration."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import fakeredis
import pytest

from controller.platforms.local_host import LocalHost
from controller.service import driver
from controller.service.driver import LEND_AFTER_S, Driver, candidate
from controller.service.hosts import HereHost
from controller.service.lease import Leases
from controller.service.records import JobRecord, read_record
from controller.service.reporter import Reached
from controller.service.service import Service
from controller.service.settings import Settings
from rlhfless.spec import JobSpec

SPEC = {
    "model": {"path": "org/model"},
    "dataset": {"path": "org/data"},
    "rewards": [{"http": "http://reward"}],
    "rollout": {"max_instances": 4},
}


class World:
    """One instance: too few for any job."""

    def __init__(self, folder: Path) -> None:
        self.redis = fakeredis.FakeAsyncRedis()
        settings = Settings(folder=str(folder), store="memory://driver", instances=1)
        self.service = Service(self.redis, settings)
        self.others = Leases(self.redis, "other")
        host = HereHost(LocalHost(str(folder / "host")))
        self.driver = Driver(self.service, host, Leases(self.redis, "this"))

    async def job(self, *states: str) -> JobRecord:
        registry = self.service.registry
        job = await registry.create("acme", SPEC)
        if "running" in states:
            job = await registry.move("acme", job.id, "running")
        if "pausing" in states:
            job = await registry.pause("acme", job.id, "by its owner")
        return job

    async def turn(self) -> None:
        async with asyncio.TaskGroup() as group:
            await self.driver.turn(group)

    async def state(self, job: JobRecord) -> tuple[str, str | None]:
        now = await self.service.registry.get("acme", job.id)
        return now.state, now.reason


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    return lambda test: asyncio.run(test(World(tmp_path)))


Play = Callable[[Callable[[World], Awaitable[None]]], None]


def test_a_job_that_lost_its_replica_and_its_turn_waits_again(play: Play) -> None:
    async def test(world: World) -> None:
        job = await world.job("running")
        await world.turn()
        assert await world.state(job) == ("queued", "its replica was lost")
        assert (await world.service.shares.read()).waiting[job.id].startswith("needs 3 instances")

    play(test)


def test_a_job_that_was_to_pause_needs_no_instance_to_do_so(play: Play) -> None:
    async def test(world: World) -> None:
        job = await world.job("running", "pausing")
        await world.turn()
        assert await world.state(job) == ("paused", "by its owner")

    play(test)


def test_what_another_replica_drives_is_left_to_it(play: Play) -> None:
    async def test(world: World) -> None:
        job = await world.job("running")
        assert await world.others.acquire(job.id)
        await world.turn()
        assert await world.state(job) == ("running", None)

    play(test)


@pytest.mark.parametrize(
    ("phase", "ago_s", "most"),
    [("rollout", 60.0, 6), ("train", 0.0, 6), ("train", LEND_AFTER_S + 1, 3)],
)
def test_a_job_that_trains_for_long_lends_its_rollouts_instances(
    phase: str, ago_s: float, most: int
) -> None:
    record = JobRecord(
        id="job", tenant="acme", spec=SPEC, created_at=0.0, state="running", entered={}
    )
    reached = Reached(phase=phase, since=time.time() - ago_s)
    found = candidate(record, JobSpec.model_validate(SPEC), reached)
    assert (found.least, found.most) == (3, most)


def test_a_record_is_read_when_it_has_changed(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(raw: bytes) -> JobRecord:
        record = read_record(raw)
        read.append(record.state)
        return record

    monkeypatch.setattr(driver, "read_record", reading)

    async def test(world: World) -> None:
        job = await world.job()
        await world.turn()
        await world.turn()
        assert read == ["queued"]
        await world.service.registry.pause("acme", job.id, "by its owner")
        await world.turn()
        await world.turn()
        assert read == ["queued", "paused"]
        await world.service.registry.move("acme", job.id, "cancelled")
        await world.turn()
        assert read == ["queued", "paused"]

    play(test)


def test_a_job_of_a_newer_release_is_left_to_it(
    play: Callable[[Callable[[World], Awaitable[None]]], None],
) -> None:
    async def test(world: World) -> None:
        registry = world.service.registry
        newer = await registry.create("acme", {**SPEC, "novelty": {"on": True}})
        alien = await registry.create("acme", {**SPEC, "rewards": 7})
        await world.turn()
        queue = await world.service.shares.read()
        assert newer.id in queue.waiting  # it counts
        assert alien.id not in queue.waiting
        assert await world.state(newer) == ("queued", None)

    play(test)
