"""The awaiting client against the service's own app, over a Redis in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fakeredis
import httpx
import pytest

from controller.service.app import create_app
from controller.service.keys import ApiKeys
from controller.service.service import Service
from controller.service.settings import Settings
from rlhfless import AsyncClient
from rlhfless.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnauthenticatedError,
    UserError,
)

Connect = Callable[..., Awaitable[AsyncClient]]


def with_service(folder: Path, test: Callable[[Connect], Awaitable[None]]) -> None:
    async def main() -> None:
        redis = fakeredis.FakeAsyncRedis()
        settings = Settings(folder=str(folder / "data"), store=str(folder / "store"))
        transport = httpx.ASGITransport(create_app(Service(redis, settings)))

        async def connect(scope: Any = "admin", tenant: str = "acme") -> AsyncClient:
            key = (await ApiKeys(redis).create(tenant, "test", scope))[1]
            return AsyncClient("http://service", key, transport=transport)

        await test(connect)
        await redis.aclose()

    asyncio.run(main())


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "data.jsonl").write_text('{"prompt": "x"}\n')
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "rewards.py").write_text("import helper\ndef f(**_): ...\n")
    (tmp_path / "alone.py").write_text("def g(**_): ...\n")
    (tmp_path / "first.yaml").write_text(
        "model: {path: model}\ndataset: {path: data.jsonl}\n"
        "rewards: [{python: 'rewards.py:f'}, {python: 'alone.py:g'}]\n"
    )
    return str(tmp_path / "first.yaml")


def test_a_job_and_its_files(tmp_path: Path, job_file: str) -> None:
    async def test(connect: Connect) -> None:
        client = await connect()
        made = await client.jobs.submit(job_file)
        assert (made.name, made.state) == ("first", "queued")
        again = await client.jobs.submit(job_file)
        assert again.spec == made.spec
        files = [file async for file in client.files.list()]
        assert sorted(file.filename for file in files) == [
            "alone.py",
            "data.jsonl",
            "model.tar",
            "rewards.tar",
        ]
        assert await client.files.get(files[0]) == files[0]
        with pytest.raises(ConflictError):
            await client.files.delete(files[0])
        assert [job.id async for job in client.jobs.list()] == [again.id, made.id]
        for name, job in ((made.id, made), (made.id[:20], None), ("first", again)):
            if job is not None:
                assert (await client.jobs.find(name)).id == job.id
        for job in (made, again):
            with pytest.raises(ConflictError, match="only jobs that have ended"):
                await client.jobs.delete(job)
            assert (await client.jobs.cancel(job)).state == "cancelled"
        assert (await client.jobs.wait(made)).state == "cancelled"
        told = [event async for event in client.jobs.events(made)]
        paged = [event async for event in client.jobs.events(made, follow=False)]
        assert told == paged
        assert [event.data["state"] for event in told] == ["queued", "cancelled"]
        assert [e async for e in client.jobs.events(made, after=told[0].id)] == told[1:]
        await client.jobs.delete(made)
        assert [job.id async for job in client.jobs.list()] == [again.id]
        await client.files.delete(files[0])
        with pytest.raises(NotFoundError):
            await client.files.get(files[0])

    with_service(tmp_path, test)


def test_a_part_of_an_id_that_several_have(tmp_path: Path, job_file: str) -> None:
    async def test(connect: Connect) -> None:
        client = await connect()
        first, second = [await client.jobs.submit(job_file) for _ in range(2)]
        same = next(n for n in range(99) if first.id[:n] != second.id[:n])
        assert (await client.jobs.find(first.id[:same])).id == first.id
        assert (await client.jobs.find(first.id[4:same])).id == first.id
        with pytest.raises(UserError, match="begins the ids of several jobs"):
            await client.jobs.find(first.id[: same - 1])
        with pytest.raises(NotFoundError):
            await client.jobs.find("another")
        with pytest.raises(NotFoundError):
            await (await connect(tenant="rival")).jobs.find(first.id)

    with_service(tmp_path, test)


def test_keys_and_the_tenant(tmp_path: Path, job_file: str) -> None:
    async def test(connect: Connect) -> None:
        admin, reader = await connect(), await connect("read")
        made = await admin.keys.create("for CI", "submit")
        assert made.key is not None
        listed = {key.id: key async for key in admin.keys.list()}
        assert listed[made.id].key is None
        await admin.keys.revoke(made)
        tenant = await reader.tenant()
        assert (tenant.name, tenant.scope) == ("acme", "read")
        with pytest.raises(ForbiddenError):
            await reader.jobs.submit(job_file)
        nobody = AsyncClient("http://service", "rlk_no", transport=admin._http._transport)
        with pytest.raises(UnauthenticatedError) as raised:
            await nobody.tenant()
        assert "RLHFLESS_API_KEY" in (raised.value.hint or "")
        actions = [entry.action async for entry in admin.audit()]
        assert any("/v1/keys" in action for action in actions)

    with_service(tmp_path, test)
