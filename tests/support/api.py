"""The service's API over a Redis in memory and folders of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fakeredis
import httpx

from controller.service.app import create_app
from controller.service.keys import Scope
from controller.service.service import Service
from controller.service.settings import Settings


class Api:
    """``parts``: of a replica whose settings are ``settings`` over small bounds."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        usual = {"folder": str(folder / "replica"), "store": str(folder / "store")}
        self.settings = Settings(**(usual | settings))
        self.redis = fakeredis.FakeAsyncRedis()
        self.parts = Service(self.redis, self.settings)
        self.app = create_app(self.parts)

    async def user(self, tenant: str = "acme", scope: Scope = "submit") -> httpx.AsyncClient:
        key = (await self.parts.keys.create(tenant, "test", scope))[1]
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(transport=transport, base_url="http://service", headers=headers)


def with_api(folder: Path, test: Callable[[Api], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        api = Api(folder, **settings)
        await test(api)
        await api.redis.aclose()

    asyncio.run(main())


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document that a response must be."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert {"type", "title", "detail", "category"} <= problem.keys()
    return problem
