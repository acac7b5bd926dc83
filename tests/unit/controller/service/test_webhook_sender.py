"""Every message is taken at least once, and in order, whichever replica sends it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import fakeredis
import pytest

from controller.service import webhook_sender
from controller.service.events import Events, JobEvent
from controller.service.fanout import Fanout
from controller.service.lease import Leases
from controller.service.records import WEBHOOK_JOBS
from controller.service.registry import Registry
from controller.service.settings import Settings
from controller.service.webhook_sender import WebhookSender
from rlhfless.spec_secrets import split
from tests.support.receiver import Receiver, receiving
from tests.support.trackers import job_spec, until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_sender, "LOOK_S", 0.02)
    monkeypatch.setattr("controller.integrations.delivery.FIRST_PAUSE_S", 0.01)


class World:
    """A job with a webhook, and as many replicas as a test starts."""

    def __init__(self, receiver: Receiver, **webhook: Any) -> None:
        self.receiver = receiver
        self.server = fakeredis.FakeServer()
        self.redis = fakeredis.FakeAsyncRedis(server=self.server)
        self.registry = Registry(self.redis)
        self.events = Events(self.redis)
        hook = {"url": f"{receiver.url}/hook", "secret": "a shared secret", **webhook}
        self.spec = job_spec(webhooks=[hook])
        self.allowed: tuple[str, ...] = (receiver.url,)
        self.job = ""

    async def submit(self) -> None:
        masked, secrets = split(self.spec)
        self.job = (await self.registry.create("acme", masked, None, secrets)).id

    async def move(self, *states: Any) -> None:
        for state in states:
            await self.registry.move("acme", self.job, state, f"why {state}")

    def replica(self, name: str) -> "asyncio.Task[None]":
        redis = fakeredis.FakeAsyncRedis(server=self.server)
        settings = Settings(folder="f", store="s", allowed_urls=self.allowed)
        leases = Leases(redis, name)
        sender = WebhookSender(redis, Registry(redis), Events(redis), leases, settings)
        return asyncio.create_task(sender.run(), name=name)

    async def kill(self, replica: "asyncio.Task[None]") -> None:
        """As if its machine had gone; its lease runs out at once."""
        replica.cancel()
        await asyncio.wait({replica})
        await self.redis.delete(f"rlhfless:{{{webhook_sender.LEASE}}}:lease")

    async def told(self) -> bool:
        return not await self.redis.smembers(WEBHOOK_JOBS)

    async def until_told(self) -> None:
        while not await self.told():  # noqa: ASYNC110  (a replica cannot set an event)
            await asyncio.sleep(0.02)

    async def notices(self) -> AsyncGenerator[JobEvent, None]:
        async for events in Fanout(self.events).follow(self.job):
            for event in events:
                if event.type == "notice":
                    yield event


def play(test: Callable[[World], Awaitable[None]], *statuses: int, **how: Any) -> Receiver:
    with receiving(*statuses, held=how.pop("held", False)) as receiver:

        async def main() -> None:
            await test(World(receiver, **how))

        asyncio.run(main())
    return receiver


def test_states_are_told_signed_and_in_order() -> None:
    async def test(world: World) -> None:
        await world.submit()
        replica = world.replica("a")
        await world.move("running", "pausing", "paused", "queued", "running", "succeeded")
        await world.until_told()
        assert [key async for key in world.redis.scan_iter("*webhook:*")] == []
        await world.kill(replica)

    receiver = play(test)
    assert receiver.states() == ["running", "paused", "running", "succeeded"]
    assert [m.content["reason"] for m in receiver.received][-1] == "why succeeded"
    assert all(m.headers["webhook-signature"].startswith("v1,") for m in receiver.received)
    assert len({m.content["id"] for m in receiver.received}) == 4


def test_a_refused_message_is_sent_again_before_the_next() -> None:
    async def test(world: World) -> None:
        await world.submit()
        await world.move("running", "failed")
        replica = world.replica("a")
        await world.until_told()
        page = await world.events.read(world.job)
        notices = [event for event in page.data if event.type == "notice"]
        assert [event.level for event in notices] == ["warning"]
        assert "answered with status 500" in notices[0].message
        assert "hook" not in notices[0].message.replace("webhook", "")
        await world.kill(replica)

    receiver = play(test, 500, 503)
    assert receiver.states() == ["running", "running", "running", "failed"]
    assert len({m.content["id"] for m in receiver.received}) == 2


def test_another_replica_goes_on_after_a_crash() -> None:
    async def test(world: World) -> None:
        await world.submit()
        await world.move("running", "pausing", "paused")
        first = world.replica("a")
        await until(lambda: world.receiver.states() == ["running"])
        await world.kill(first)  # before it heard that the message was taken
        world.receiver.hold.set()
        second = world.replica("b")
        await until(lambda: "paused" in world.receiver.states())
        await world.move("queued", "cancelled")
        await world.until_told()
        await world.kill(second)

    receiver = play(test, held=True)
    assert receiver.states() == ["running", "running", "paused", "cancelled"]
    ids = [m.content["id"] for m in receiver.received]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_one_of_two_replicas_sends() -> None:
    async def test(world: World) -> None:
        await world.submit()
        replicas = [world.replica(name) for name in "ab"]
        await world.move("running", "succeeded")
        await world.until_told()
        for replica in replicas:
            await world.kill(replica)

    assert play(test).states() == ["running", "succeeded"]


def test_steps_are_told_where_they_are_asked_for() -> None:
    async def test(world: World) -> None:
        await world.submit()
        replica = world.replica("a")
        await world.move("running")
        for number in (1, 2):
            data = {"step": number, "metrics": {"reward/mean": 0.5}}
            await world.events.append(world.job, JobEvent(type="step", message="", data=data))
        await world.move("succeeded")
        await world.until_told()
        await world.kill(replica)

    received = [m.content for m in play(test, events=["step"]).received]
    assert [(c["type"], c["step"]) for c in received] == [("job.step", 1), ("job.step", 2)]


def test_no_message_goes_into_the_operators_network() -> None:
    async def test(world: World) -> None:
        world.allowed = ()
        await world.submit()
        replica = world.replica("a")
        await world.move("running")
        notice = await anext(aiter(world.notices()))
        assert "not a host of the public internet" in notice.message
        await world.kill(replica)

    assert play(test).received == []


def test_a_job_without_webhooks_is_none_of_its_business() -> None:
    async def test(world: World) -> None:
        world.spec = job_spec()
        await world.submit()
        assert await world.told()

    play(test)
