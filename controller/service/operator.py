"""What whoever operates a service may do with its Redis at hand; no key of the API is asked for."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from controller.redis_server import join_redis, open_redis
from controller.service.keys import ApiKeys
from controller.service.tenants import Tenants
from rlhfless.errors import NotFoundError


class Operator:
    """Keys and limits of every tenant."""

    def __init__(self, redis: Redis) -> None:
        self.keys = ApiKeys(redis)
        self.tenants = Tenants(redis)


@asynccontextmanager
async def open_operator(data: str, redis_url: str | None) -> AsyncGenerator[Operator, None]:
    """With the Redis at the URL, else with that of the service in the folder ``data``, whether it
    runs or not. Raises ``NotFoundError`` if there never was one, and as ``open_redis`` does."""
    folder = os.path.join(data, "redis")
    if redis_url:
        async with open_redis(folder, redis_url) as redis:
            yield Operator(redis)
        return
    if not os.path.isdir(folder):  # noqa: ASYNC240 - nothing else runs here
        raise NotFoundError(
            f"there is no service's data in {data}",
            hint="name its folder by --data or its Redis by REDIS_URL; `rlhfless serve` makes one",
        )
    async with join_redis(folder) as redis:
        yield Operator(redis)
