import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import fakeredis
import pytest
from fastapi.responses import JSONResponse, Response

from controller.service.once import Once
from controller.service.refusals import StillWorkingError
from rlhfless.errors import ConflictError, UserError

ASKED = ("POST /v1/x", b"{}")


class World:
    """``work`` counts how often it was done, and waits while ``free`` is not set."""

    def __init__(self) -> None:
        self.redis = fakeredis.FakeAsyncRedis()
        self.once = Once(self.redis)
        self.done = 0
        self.begun = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()

    async def work(self) -> Response:
        self.done += 1
        number = self.done
        self.begun.set()
        await self.free.wait()
        return JSONResponse({"done": number}, 201, {"Location": f"/v1/x/{number}"})


def with_world(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await test(world)
        await world.redis.aclose()

    asyncio.run(main())


def test_a_repeat_is_answered_as_the_first_was() -> None:
    async def test(world: World) -> None:
        first = await world.once("acme", "k", ASKED, world.work)
        again = await world.once("acme", "k", ASKED, world.work)
        assert (again.status_code, again.body) == (201, first.body)
        assert again.headers["location"] == "/v1/x/1"
        assert again.headers["content-type"] == first.headers["content-type"]
        assert world.done == 1
        assert await world.redis.ttl((await world.redis.keys("*"))[0]) > 23 * 3600

    with_world(test)


def test_keys_are_a_tenants_own_and_none_means_each_time() -> None:
    async def test(world: World) -> None:
        for tenant, key in [("acme", "k"), ("rival", "k"), ("acme", "l"), ("a", None), ("a", None)]:
            await world.once(tenant, key, ASKED, world.work)
        assert world.done == 5

    with_world(test)


@pytest.mark.parametrize("asked", [("POST /v1/x", b"{} "), ("POST /v1/y", b"{}")])
def test_a_key_is_for_one_request(asked: tuple[str, bytes]) -> None:
    async def test(world: World) -> None:
        await world.once("acme", "k", ASKED, world.work)
        with pytest.raises(ConflictError, match="another request"):
            await world.once("acme", "k", asked, world.work)

    with_world(test)


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_what_cannot_be_a_key_is_refused(key: str) -> None:
    async def test(world: World) -> None:
        with pytest.raises(UserError):
            await world.once("acme", key, ASKED, world.work)
        assert world.done == 0

    with_world(test)


def test_repeats_at_the_same_time_wait_for_the_first() -> None:
    async def test(world: World) -> None:
        world.free.clear()
        asking = [asyncio.create_task(world.once("acme", "k", ASKED, world.work)) for _ in range(5)]
        await world.begun.wait()
        world.free.set()
        bodies = {bytes((await task).body) for task in asking}
        assert (len(bodies), world.done) == (1, 1)

    with_world(test)


def test_a_repeat_does_not_wait_for_ever() -> None:
    async def test(world: World) -> None:
        world.free.clear()
        first = asyncio.create_task(world.once("acme", "k", ASKED, world.work))
        await world.begun.wait()
        impatient = Once(world.redis, wait_s=0.0)
        with pytest.raises(StillWorkingError):
            await impatient("acme", "k", ASKED, world.work)
        world.free.set()
        answered = await first
        assert (await impatient("acme", "k", ASKED, world.work)).body == answered.body

    with_world(test)


def test_a_claim_is_kept_while_it_is_worked_on() -> None:
    async def test(world: World) -> None:
        world.free.clear()
        brief = Once(world.redis, claim_s=0.04)
        first = asyncio.create_task(brief("acme", "k", ASKED, world.work))
        await asyncio.sleep(0.2)
        with pytest.raises(StillWorkingError):
            await Once(world.redis, wait_s=0.0)("acme", "k", ASKED, world.work)
        world.free.set()
        await first

    with_world(test)


def test_a_crash_in_the_middle_does_not_block_for_ever() -> None:
    async def test(world: World) -> None:
        world.free.clear()
        brief = Once(world.redis, claim_s=0.04)
        crashed = asyncio.create_task(brief("acme", "k", ASKED, world.work))
        await world.begun.wait()
        crashed.cancel()
        with suppress(asyncio.CancelledError):
            await crashed
        world.free.set()
        response = await world.once("acme", "k", ASKED, world.work)
        assert response.body == b'{"done":2}'

    with_world(test)


def test_what_was_refused_may_be_corrected() -> None:
    async def refuse() -> Response:
        raise UserError("no")

    async def test(world: World) -> None:
        with pytest.raises(UserError):
            await world.once("acme", "k", ASKED, refuse)
        await world.once("acme", "k", ("POST /v1/x", b"better"), world.work)

    with_world(test)


def test_a_secret_is_not_kept() -> None:
    async def test(world: World) -> None:
        await world.once("acme", "k", ASKED, world.work, secret=True)
        (kept,) = [await world.redis.get(key) for key in await world.redis.keys("*")]
        assert kept is not None
        assert b"done" not in kept
        with pytest.raises(ConflictError, match="secret") as caught:
            await world.once("acme", "k", ASKED, world.work, secret=True)
        assert "/v1/x/1" in str(caught.value.hint)
        assert world.done == 1

    with_world(test)
