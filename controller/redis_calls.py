"""One way to ask Redis: its errors become ours, and a cancellation is never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from redis.exceptions import OutOfMemoryError, RedisError

from rlhfless.errors import CapacityError, RlhflessError, TransientError


class StoreAwayError(TransientError):
    """The job store cannot be reached. ``detail`` says where it was looked for, for whoever runs
    it."""


async def answer(command: Awaitable[Any]) -> Any:
    """What Redis answers. Raises ``StoreAwayError`` when it cannot be reached after its client's
    own retries, ``CapacityError`` when it cannot persist."""
    task = asyncio.current_task()
    assert task is not None
    cancellations = task.cancelling()
    try:
        found = await command
    except (RedisError, RlhflessError) as error:
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError from error
        if isinstance(error, RlhflessError):  # of a transaction's own
            raise
        # In a pipeline the text begins with the command, record and all, and is a tuple's.
        text = str(error).rpartition("caused error: ")[2]
        text = text.removeprefix("('").removesuffix("',)")
        if isinstance(error, OutOfMemoryError) or "MISCONF" in text or "OOM" in text:
            raise CapacityError(
                f"the job store cannot persist: {text}",
                hint="free some disk space or memory",
            ) from error
        raise StoreAwayError(f"the job store cannot be reached: {text}") from error
    # The client writes through asyncio.wait_for, which on Python 3.11 loses a cancellation that
    # comes as the write ends; whoever cancelled this task would wait for it for ever.
    if task.cancelling() > cancellations:
        raise asyncio.CancelledError
    return found
