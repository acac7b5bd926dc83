import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import fakeredis
import pytest

from controller.service.keys import PREFIX, SCOPES, ApiKey, ApiKeys, Scope
from rlhfless.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnauthenticatedError,
    UserError,
)

KEY = ApiKey(id="k", tenant="acme", name="n", scope="read", created_at=0.0)


def with_keys(test: Callable[[ApiKeys, fakeredis.FakeAsyncRedis], Awaitable[None]]) -> None:
    async def main() -> None:
        redis = fakeredis.FakeAsyncRedis()
        seconds = iter(range(100))
        await test(ApiKeys(redis, now=lambda: float(next(seconds))), redis)
        await redis.aclose()

    asyncio.run(main())


def test_a_key_names_its_tenant_and_scope() -> None:
    async def test(keys: ApiKeys, redis: fakeredis.FakeAsyncRedis) -> None:
        key, text = await keys.create("acme", "laptop", "submit")
        assert text.startswith(f"{PREFIX}{key.id}_")
        assert await keys.authenticate(text) == key
        assert (key.tenant, key.name, key.scope, key.created_at) == ("acme", "laptop", "submit", 0)

    with_keys(test)


def test_secrets_are_not_kept() -> None:
    async def test(keys: ApiKeys, redis: fakeredis.FakeAsyncRedis) -> None:
        _, text = await keys.create("acme", "laptop", "read")
        secret = text.rpartition("_")[2]
        assert len(secret) == 64
        kept = await redis.hgetall("rlhfless:keys")
        assert await redis.keys("*") == [b"rlhfless:keys"]
        assert secret.encode() not in b"".join([*kept.keys(), *kept.values()])

    with_keys(test)


def test_two_keys_differ_in_everything() -> None:
    async def test(keys: ApiKeys, redis: fakeredis.FakeAsyncRedis) -> None:
        (one, first), (two, second) = [await keys.create("acme", "k", "read") for _ in range(2)]
        assert one.id != two.id
        assert first.rpartition("_")[2] != second.rpartition("_")[2]

    with_keys(test)


def test_what_is_no_key_is_refused_in_the_same_words() -> None:
    async def test(keys: ApiKeys, redis: fakeredis.FakeAsyncRedis) -> None:
        key, text = await keys.create("acme", "k", "read")
        other, _ = await keys.create("acme", "k", "read")
        _, revoked = await keys.create("acme", "k", "read")
        await keys.revoke("acme", revoked.split("_")[1])
        secret = text.rpartition("_")[2]
        wrong = [
            "",
            "rlk_",
            text[:-1],
            text + "0",
            text + "\n",
            text.upper(),
            text.removeprefix(PREFIX),
            f"{PREFIX}{key.id}_{'0' * 64}",
            f"{PREFIX}{other.id}_{secret}",
            f"{PREFIX}{'0' * 16}_{secret}",
            f"{PREFIX}{key.id}_{'é' * 64}",
            revoked,
        ]
        words = set()
        for attempt in wrong:
            with pytest.raises(UnauthenticatedError) as caught:
                await keys.authenticate(attempt)
            words.add((caught.value.detail, caught.value.hint))
        assert len(words) == 1
        assert secret not in str(words)

    with_keys(test)


def test_scopes_include_the_smaller_ones() -> None:
    for held in SCOPES:
        for asked in SCOPES:
            key = ApiKey(id="k", tenant="t", name="n", scope=held, created_at=0)
            if SCOPES.index(asked) <= SCOPES.index(held):
                key.require(asked)
            else:
                with pytest.raises(ForbiddenError, match=asked):
                    key.require(asked)


def test_a_revoked_key_stays_revoked_at_its_first_time() -> None:
    async def test(keys: ApiKeys, redis: fakeredis.FakeAsyncRedis) -> None:
        key, text = await keys.create("acme", "k", "read")
        first = await keys.revoke("acme", key.id)
        assert first.revoked_at == 1.0
        assert await keys.revoke("acme", key.id) == first
        with pytest.raises(UnauthenticatedError):
            await keys.authenticate(text)

    with_keys(test)


def test_another_tenants_keys_are_out_of_reach() -> None:
    async def test(keys: ApiKeys, redis: fakeredis.FakeAsyncRedis) -> None:
        key, text = await keys.create("acme", "k", "read")
        words = []
        for id_ in (key.id, "0" * 16):
            with pytest.raises(NotFoundError) as caught:
                await keys.revoke("rival", id_)
            words.append(caught.value.detail.replace(id_, ""))
        assert words[0] == words[1]  # nor can one learn that it is there
        assert await keys.authenticate(text) == key
        assert await keys.listed("rival") == []

    with_keys(test)


def test_keys_are_listed_oldest_first() -> None:
    async def test(keys: ApiKeys, redis: fakeredis.FakeAsyncRedis) -> None:
        made = [(await keys.create(t, "k", "read"))[0] for t in ("b", "a", "b")]
        assert await keys.listed() == made
        assert await keys.listed("b") == [made[0], made[2]]
        revoked = await keys.revoke("b", made[0].id)
        assert await keys.listed("b") == [revoked, made[2]]

    with_keys(test)


@pytest.mark.parametrize("tenant", ["", "A", "a b", "a:b", "-a", "a-", "a" * 64, "a\n", "../a"])
def test_a_tenants_name_is_checked(tenant: str) -> None:
    async def test(keys: ApiKeys, redis: fakeredis.FakeAsyncRedis) -> None:
        with pytest.raises(UserError) as caught:
            await keys.create(tenant, "k", "read")
        assert caught.value.param == "tenant"
        assert await keys.listed() == []

    with_keys(test)


@pytest.mark.parametrize(("name", "scope"), [("", "read"), ("x" * 101, "read"), ("a\nb", "read")])
def test_a_keys_name_is_checked(name: str, scope: Scope) -> None:
    async def test(keys: ApiKeys, redis: fakeredis.FakeAsyncRedis) -> None:
        with pytest.raises(UserError, match="printable"):
            await keys.create("acme", name, scope)

    with_keys(test)


def test_a_scope_is_one_of_three() -> None:
    async def test(keys: ApiKeys, redis: fakeredis.FakeAsyncRedis) -> None:
        with pytest.raises(UserError, match="read, submit, admin"):
            await keys.create("acme", "k", cast(Scope, "root"))

    with_keys(test)


def test_a_key_is_valid_until_it_is_revoked() -> None:
    async def test(keys: ApiKeys, redis: fakeredis.FakeAsyncRedis) -> None:
        key, _ = await keys.create("acme", "k", "read")
        assert await keys.still_valid(key.id)
        assert await keys.find(key.id) == key
        await keys.revoke("acme", key.id)
        assert not await keys.still_valid(key.id)
        assert not await keys.still_valid("nobody's")
        with pytest.raises(NotFoundError):
            await keys.find("nobody's")

    with_keys(test)


def test_a_tenant_keeps_an_admin() -> None:
    async def test(keys: ApiKeys, redis: fakeredis.FakeAsyncRedis) -> None:
        first, _ = await keys.create("acme", "first", "admin")
        await keys.create("acme", "k", "submit")
        await keys.create("rival", "k", "admin")
        with pytest.raises(ConflictError):
            await keys.revoke("acme", first.id, keep_an_admin=True)
        second, _ = await keys.create("acme", "second", "admin")
        await keys.revoke("acme", first.id, keep_an_admin=True)
        await keys.revoke("acme", first.id, keep_an_admin=True)  # repeating is harmless
        with pytest.raises(ConflictError):
            await keys.revoke("acme", second.id, keep_an_admin=True)
        assert (await keys.revoke("acme", second.id)).revoked_at is not None

    with_keys(test)
