"""Errors of Redis as ours, in words for people."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import RedisError, ResponseError

from controller.redis_calls import StoreAwayError, answer
from rlhfless.errors import CapacityError, TransientError

FULL = "MISCONF Errors writing to the AOF file: No space left on device"


@pytest.mark.parametrize(
    ("error", "family", "said"),
    [
        (ResponseError(FULL), CapacityError, f"the job store cannot persist: {FULL}"),
        (  # as a pipeline tells it
            ResponseError(f"Command # 1 (SET k {{...}}) of pipeline caused error: {(FULL,)}"),
            CapacityError,
            f"the job store cannot persist: {FULL}",
        ),
        (RedisError("gone"), StoreAwayError, "the job store cannot be reached: gone"),
    ],
)
def test_an_error_of_redis_is_one_of_ours(
    error: RedisError, family: type[CapacityError] | type[TransientError], said: str
) -> None:
    async def refused() -> None:
        raise error

    with pytest.raises(family) as told:
        asyncio.run(answer(refused()))
    assert told.value.detail == said
