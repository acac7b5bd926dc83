"""How the commands of a service's operator reach it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from rlhfless.cli.loop import run_interruptible

if TYPE_CHECKING:
    from controller.service.operator import Operator

T = TypeVar("T")


def operating(data: str, work: Callable[[Operator], Awaitable[T]]) -> T:
    """Runs ``work`` on the Redis at ``REDIS_URL``, else on that of the service in a folder."""
    from controller.service.operator import open_operator

    async def main() -> T:
        async with open_operator(data, os.environ.get("REDIS_URL")) as operator:
            return await work(operator)

    return run_interruptible(main())
