"""A message is tried until it is taken, or not worth it any more."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from controller.integrations.messages import Refused
from rlhfless.errors import RlhflessError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
GIVE_UP_AFTER_S = 24 * 3600.0
"""A message that is older gets one more attempt, after a receiver was away for long."""
GONE = 410
"""With this status a receiver says that it wants no more of it."""

Send = Callable[[Mapping[str, Any], float], Awaitable[None]]
"""One attempt: the message and the time (Unix seconds). Raises as ``messages.post`` does."""


async def deliver(
    content: Mapping[str, Any],
    send: Send,
    *,
    failed: Callable[[str], Awaitable[None]],
    rng: random.Random,
    now: Callable[[], float] = time.time,
) -> None:
    """Returns when the message was taken or given up; ``failed`` hears why, of the first failure
    and of giving up. Pauses double from ``FIRST_PAUSE_S`` and are jittered by ``rng``."""
    pause_s = FIRST_PAUSE_S
    first = True
    while True:
        try:
            await send(content, now())
            return
        except Refused as refused:
            why, gone = str(refused), refused.status == GONE
        except RlhflessError as error:
            why, gone = error.detail, False
        if gone or now() - content["created_at"] > GIVE_UP_AFTER_S:
            await failed(f"{why}; given up")
            return
        if first:
            await failed(f"{why}; tried again for a day")
            first = False
        await asyncio.sleep(pause_s * rng.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
