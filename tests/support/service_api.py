"""The API over a Redis in memory, with users of two tenants, and every route that it documents."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fakeredis
import httpx

from controller.service.app import create_app
from controller.service.guard import Guard
from controller.service.keys import Scope
from controller.service.service import Service
from controller.service.settings import Settings

SPEC = {
    "model": {"path": "org/model"},
    "dataset": {"path": "org/data"},
    "rewards": [{"http": "http://reward"}],
}
METHODS = ("get", "post", "put", "patch", "delete")
MAX_BODY, MAX_FILE = 5000, 20_000


@dataclasses.dataclass(frozen=True)
class Route:
    """``params``: those of its path; ``operation``: as the document has it."""

    method: str
    template: str
    params: tuple[str, ...]
    operation: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.method} {self.template}"

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    @property
    def reads_body(self) -> bool:
        return "requestBody" in self.operation


class Api:
    """``folder``: of the service; None where nothing needs one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.server = fakeredis.FakeServer()
        self.redis = fakeredis.FakeAsyncRedis(server=self.server)
        settings = Settings(
            folder=str(folder or "/nowhere"),
            store=f"memory://{uuid.uuid4().hex}",
            max_body_bytes=MAX_BODY,
            max_file_bytes=MAX_FILE,
            allowed_urls=("http://reward",),
        )
        self.service = Service(self.redis, settings)
        self.app = create_app(self.service)
        self.nobody = self.with_key("")

    def with_key(self, text: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {text}"} if text else {}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://service", headers=headers)

    async def user(self, tenant: str, scope: Scope) -> httpx.AsyncClient:
        return self.with_key((await self.service.keys.create(tenant, "test", scope))[1])

    def forget_attempts(self) -> None:
        """Addresses that tried bad keys may do so again."""
        fresh = Guard(lambda: asyncio.get_running_loop().time())
        self.service.guard = self.app.state.guard = fresh


def with_api(test: Callable[[Api], Awaitable[None]], folder: Path | None = None) -> None:
    async def main() -> None:
        api = Api(folder)
        await test(api)
        api.server.connected = True
        await api.redis.aclose()

    asyncio.run(main())


def documented_routes() -> list[Route]:
    """Every operation of the API's document."""
    paths = Api().app.openapi()["paths"]
    return [
        Route(
            method.upper(),
            template,
            tuple(one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"),
            operation,
        )
        for template, methods in paths.items()
        for method, operation in methods.items()
        if method in METHODS
    ]


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == status
    assert {"type", "title", "detail", "category"} <= problem.keys()
    return problem
