"""The parts of the service on a real Redis: expiry, blocking reads, connections that die."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from controller.fencing import LostLeaseError
from controller.job_store import JobStore
from controller.journal import StepRecord
from controller.redis_server import open_redis
from controller.service.app import create_app
from controller.service.events import Events, JobEvent
from controller.service.fanout import Fanout
from controller.service.keys import ApiKeys
from controller.service.lease import Lease, Leases
from controller.service.registry import Registry
from controller.service.service import Service
from controller.service.settings import Settings

pytestmark = pytest.mark.slow

SETTINGS = Settings(folder="/nowhere", store="memory://service")


def with_redis(folder: Path, test: Callable[[Redis], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_redis(str(folder)) as redis:
            await test(redis)

    asyncio.run(main())


def event(number: int) -> JobEvent:
    return JobEvent(type="step", message=f"step {number}", data={"step": number})


async def until_granted(leases: Leases) -> Lease:
    while True:
        lease = await leases.acquire("job")
        if lease is not None:
            return lease
        await asyncio.sleep(0.01)


def test_a_lease_that_nobody_renews_passes_to_another(tmp_path: Path) -> None:
    async def test(redis: Redis) -> None:
        old = await Leases(redis, "a", ttl_s=0.2).acquire("job")
        assert old is not None
        new = await until_granted(Leases(redis, "b", ttl_s=60.0))
        assert new.fence.token == 2
        store = JobStore(redis, "job", new.fence)
        await store.commit(StepRecord(step=0, version=1, metrics={}, position={}), b"")
        with pytest.raises(LostLeaseError):
            await JobStore(redis, "job", old.fence).note(status="failed")
        assert await store.notes() == {}

    with_redis(tmp_path, test)


def test_a_lease_that_is_kept_is_renewed(tmp_path: Path) -> None:
    async def test(redis: Redis) -> None:
        leases = Leases(redis, "a", ttl_s=8.0)
        lease = await leases.acquire("job")
        assert lease is not None
        async with leases.keeping(lease):
            left_ms = await redis.pttl("rlhfless:{job}:lease")
            while (now_ms := await redis.pttl("rlhfless:{job}:lease")) <= left_ms:
                left_ms = now_ms
                await asyncio.sleep(0.05)
            assert await Leases(redis, "b").acquire("job") is None
        assert (await until_granted(Leases(redis, "b"))).fence.token == 2

    with_redis(tmp_path, test)


def test_a_follower_is_woken_by_each_event(tmp_path: Path) -> None:
    async def test(redis: Redis) -> None:
        events = Events(redis)
        await events.append("job", event(0))
        seen: asyncio.Queue[int] = asyncio.Queue()

        async def follow() -> None:
            async with contextlib.aclosing(Fanout(events).follow("job")) as stream:
                async for came in stream:
                    for one in came:
                        seen.put_nowait(one.data["step"])

        following = asyncio.create_task(follow())
        for number in range(5):
            assert await seen.get() == number
            await events.append("job", event(number + 1))
        following.cancel()
        await asyncio.wait({following})
        assert following.cancelled()
        page = await events.read("job")
        assert [came.data["step"] for came in page.data] == list(range(6))

    with_redis(tmp_path, test)


def test_waiting_ends_without_an_event_and_serves_many_jobs(tmp_path: Path) -> None:
    async def test(redis: Redis) -> None:
        events = Events(redis)
        assert await events.wait({"a": "0-0"}, 0.01) == {}
        await events.append("a", event(1))
        await events.append("b", event(2))
        found = await events.wait({"a": "0-0", "b": "0-0", "c": "0-0"})
        assert {job: [e.data["step"] for e in came] for job, came in found.items()} == {
            "a": [1],
            "b": [2],
        }

    with_redis(tmp_path, test)


def test_an_event_stream_tells_what_comes_and_ends_with_the_job(tmp_path: Path) -> None:
    async def test(redis: Redis) -> None:
        _, text = await ApiKeys(redis).create("acme", "laptop", "submit")
        registry, events = Registry(redis), Events(redis)
        job = await registry.create("acme", {"name": "demo"})
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(Service(redis, SETTINGS))),
            base_url="http://service",
            headers={"Authorization": f"Bearer {text}", "Accept": "text/event-stream"},
            timeout=60.0,
        )
        async with client, asyncio.TaskGroup() as group:
            readers = [group.create_task(client.get(f"/v1/jobs/{job.id}/events")) for _ in range(5)]
            await registry.move("acme", job.id, "running")
            for number in range(20):
                await events.append(job.id, event(number))
            await registry.move("acme", job.id, "succeeded")
        said = [found.id for found in (await events.read(job.id)).data]
        assert len(said) == 23
        for reader in readers:
            lines = reader.result().text.splitlines()
            assert [line[4:] for line in lines if line.startswith("id: ")] == said

    with_redis(tmp_path, test)


async def cut_connections(redis: Redis, stop: asyncio.Event) -> int:
    """Kill everybody's connections again and again, as a bad network does."""
    cuts = 0
    while not stop.is_set():
        await redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        cuts += 1
        await asyncio.sleep(0.02)
    return cuts


def test_what_is_repeated_after_lost_connections_happens_once(tmp_path: Path) -> None:
    async def test(redis: Redis) -> None:
        pool: dict[str, Any] = redis.connection_pool.connection_kwargs
        others = Redis(unix_socket_path=pool["path"])
        registry, events = Registry(others), Events(others)
        stop = asyncio.Event()
        cutting = asyncio.create_task(cut_connections(redis, stop))
        jobs = []
        for number in range(30):
            job = await registry.create("acme", {"name": f"job-{number}"})
            await registry.move("acme", job.id, "running")
            await events.append(job.id, event(number))
            await registry.move("acme", job.id, "succeeded")
            jobs.append(job)
        stop.set()
        assert await cutting > 0
        assert (await registry.listed("acme", limit=100)).data[::-1] == [
            await registry.get("acme", job.id) for job in sorted(jobs, key=lambda job: job.id)
        ]
        for number, job in enumerate(jobs):
            said = [e.message for e in (await events.read(job.id)).data]
            assert said == ["queued", "running", f"step {number}", "succeeded"]
        assert await registry.open_jobs() == []
        await others.aclose()

    with_redis(tmp_path, test)


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    kept: dict[str, Any] = {}

    async def write(redis: Redis) -> None:
        kept["key"], kept["text"] = await ApiKeys(redis).create("acme", "laptop", "submit")
        kept["job"] = await Registry(redis).create("acme", {"name": "demo"}, "once")
        await Events(redis).append(kept["job"].id, event(0))
        lease = await Leases(redis, "a", ttl_s=60.0).acquire(kept["job"].id)
        assert lease is not None

    async def read(redis: Redis) -> None:
        assert await ApiKeys(redis).authenticate(kept["text"]) == kept["key"]
        assert await Registry(redis).create("acme", {"name": "demo"}, "once") == kept["job"]
        messages = [e.message for e in (await Events(redis).read(kept["job"].id)).data]
        assert messages == ["queued", "step 0"]
        assert await Leases(redis, "b").acquire(kept["job"].id) is None

    with_redis(tmp_path, write)
    with_redis(tmp_path, read)
